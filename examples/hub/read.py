"""Read an uploaded run from the hub: python read.py OWNER/NAME"""

import sys

from huggingface_hub import ModelCard, snapshot_download

import cudt

for result in ModelCard.load(sys.argv[1]).data.eval_results:
    print(result.metric_name, result.metric_value)

run = cudt.open_run(snapshot_download(sys.argv[1], local_dir="downloaded"))
print(run.info().revisions, run.info().feasible)
print(run.read_table("ood"))
