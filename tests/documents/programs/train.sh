#!/bin/sh
echo "rank $RANK of $WORLD_SIZE has the arguments $*"
