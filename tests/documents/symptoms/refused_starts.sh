# Commands that can't start their program here, each for another reason.
(ulimit -n 40; phalanx run -n 8 train.py) || true

mkdir only
ln -s "$(command -v phalanx)" only/
XDG_CACHE_HOME="$PWD/empty" PATH="$PWD/only" phalanx run --virtual-gpus 2 train.py || true
CXX=no-such-compiler XDG_CACHE_HOME="$PWD/empty" phalanx run --virtual-gpus 2 train.py || true
