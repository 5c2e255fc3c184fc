# Runs a job of which rank 1 never comes, until phalanx run has said so.
cat > late.py <<'EOF'
import time

import phalanx

group = phalanx.connect()
if group.rank == 1:
    time.sleep(600)
group.barrier()
EOF
phalanx run -n 2 --warn-after 1 late.py > said 2>&1 &
while ! grep -q "holds up" said && kill -0 $!; do sleep 0.1; done
kill -TERM $!
wait $! || true
cat said
