from cudt.utils.compat import survive_torchvision_mismatch

# Lightning imports torchvision where it is installed.
survive_torchvision_mismatch()
