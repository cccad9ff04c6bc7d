# bash examples/hub/push.sh OWNER/NAME
set -e
cudt train --recipe examples/hub/rotten-tomatoes.yaml
cudt eval-ood outputs/rotten-tomatoes/constrained-*
cudt push outputs/rotten-tomatoes/constrained-* --repo "$1" --private
python examples/hub/read.py "$1"
