# bash examples/hub/push.sh OWNER/NAME
set -e
cudt train --recipe examples/hub/films.yaml
cudt eval-ood outputs/films/constrained-*
cudt push outputs/films/constrained-* --repo "$1" --private
python examples/hub/read.py "$1"
