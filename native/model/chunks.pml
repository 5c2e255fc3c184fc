/* Chunks: large operations go through the stages.  collectives/pipeline.hpp, Endpoint::claim_stage, post_step, await_step.
 *
 * RANKS ranks do OPERATIONS operations of any kind, each in one chunk or in STEPS of them. A rank's stage is four cells: two
 * halves of two buffers. A chunk takes a cell, or two in operations that use the whole stage; it has a part for each rank. Every
 * part holds the operation and step it was written for: who reads another has read a chunk before it was written, or
 * after it was overwritten. A read or a write is one step of the model: if a write may come while a peer reads, it may
 * also come just before it, and that is seen.
 *
 * `arrived` is here the post too (posts.pml has them apart), and `step` is one number (steps.pml has the two words).
 *
 * Planted bugs: ONE_BUFFER, ONE_HALF, DOES_NOT_AWAIT_DEPARTURE, POSTS_BEFORE_CONSUMING, POSTS_BEFORE_PRODUCING, FINISHES_EARLY,
 * RESULTS_OVER_INPUTS, CLAIMS_WHOLE_EARLY.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 3
#endif
#ifndef STEPS
#define STEPS 3
#endif
#define ROOT 0
#define CELLS 4

mtype = { ONE_SHOT, ONE_SHOT_BROADCAST, ALL_REDUCE, ALL_GATHER, BROADCAST, WHOLE_BROADCAST, GATHER };
mtype kind[OPERATIONS + 1];
byte steps[OPERATIONS + 1];
byte data[RANKS * CELLS * RANKS];
byte arrived[RANKS], step[RANKS];

#define tag(s) (n * (STEPS + 2) + (s) + 1)
#define part(r, cell, p) data[((r) * CELLS + (cell)) * RANKS + (p)]
#ifdef ONE_BUFFER
#define buffer(s) 0
#else
#define buffer(s) ((s) % 2)
#endif
#ifdef ONE_HALF
#define half 0
#else
#define half (n % 2)
#endif
#define cell(s) (half * 2 + buffer(s))
#define is_writer (kind[n] == ALL_REDUCE || kind[n] == ALL_GATHER || (kind[n] == GATHER && me != ROOT) || \
                   ((kind[n] == BROADCAST || kind[n] == WHOLE_BROADCAST) && me == ROOT))
#define is_rooted (kind[n] == BROADCAST || kind[n] == WHOLE_BROADCAST || kind[n] == GATHER)
#define has_finish (kind[n] == ALL_REDUCE)
#define uses_half (kind[n] == ALL_REDUCE || kind[n] == ALL_GATHER || kind[n] == BROADCAST || kind[n] == GATHER)

/* What a rank waits for stays true, so it may wait for all peers in one step. */
#if RANKS == 2
#define of_all(is_there) (is_there(0) && is_there(1))
#elif RANKS == 3
#define of_all(is_there) (is_there(0) && is_there(1) && is_there(2))
#endif
#define has_departed(r) ((r) == me || departing == 0 || arrived[r] > departing)
#define has_arrived(r) ((r) == me || arrived[r] >= n)
/* In rooted operations the root meets everybody, and the others meet only the root. */
#define has_posted(r) ((r) == me || (is_rooted && me != ROOT && (r) != ROOT) || step[r] >= awaited)

inline await_departure(u) {
  departing = u;
  of_all(has_departed);
  departing = 0
}

inline claim_half() {
#ifndef DOES_NOT_AWAIT_DEPARTURE
  await_departure(used[half]);
#endif
  used[half] = n
}

/* One process writes a chunk: as one step, in which no peer may be reading. */
inline produce(s) {
  if
  :: is_writer ->
    d_step {
      for (p : 0 .. RANKS - 1) {
        if
        :: kind[n] == WHOLE_BROADCAST -> part(me, 2 * buffer(s), p) = tag(s); part(me, 2 * buffer(s) + 1, p) = tag(s)
        :: kind[n] == ALL_REDUCE && p == me -> skip   /* its own part it reads where it is */
        :: else -> part(me, cell(s), p) = tag(s)
        fi
      }
      p = 0
    }
  :: else
  fi
}

#define is_tagged(r, first, last, s, p) assert(part(r, first, p) == tag(s) && part(r, last, p) == tag(s))
#define reads_chunk_of(r) (kind[n] == ALL_GATHER || (kind[n] == GATHER && me == ROOT) || (kind[n] == BROADCAST && (r) == ROOT))

/* Peers do not see when a rank reads, so it may read all of them in one step. */
inline consume(s) {
  d_step {
    for (peer : 0 .. RANKS - 1) {
      for (p : 0 .. RANKS - 1) {
        if
        :: peer != me && kind[n] == ALL_REDUCE && p == me -> is_tagged(peer, cell(s), cell(s), s, p)
        :: peer != me && reads_chunk_of(peer) -> is_tagged(peer, cell(s), cell(s), s, p)
        :: peer != me && peer == ROOT && kind[n] == WHOLE_BROADCAST -> is_tagged(peer, 2 * buffer(s), 2 * buffer(s) + 1, s, p)
        :: else
        fi
      }
    }
    p = 0;
    peer = 0
  };
  if
#ifdef RESULTS_OVER_INPUTS
  :: kind[n] == ALL_REDUCE -> part(me, cell(s), (me + 1) % RANKS) = tag(s) + 100
#else
  :: kind[n] == ALL_REDUCE -> part(me, cell(s), me) = tag(s)
#endif
  :: else
  fi
}

inline finish(s) {
  d_step {
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer == me -> skip
#ifdef RESULTS_OVER_INPUTS
      :: else -> assert(part(peer, cell(s), (peer + 1) % RANKS) == tag(s) + 100)
#else
      :: else -> assert(part(peer, cell(s), peer) == tag(s))
#endif
      fi
    }
    peer = 0
  }
}

inline post_step(s) { step[me] = n * (STEPS + 2) + s }

inline await_step(s) {
  awaited = n * (STEPS + 2) + s;
  of_all(has_posted);
  awaited = 0
}

inline run_steps(met) {
  for (s : 0 .. steps[n] - 1) {
#ifdef POSTS_BEFORE_CONSUMING
    if
    :: s + 1 < steps[n] || has_finish -> produce(s + 1); post_step(met + s + 1)
    :: else
    fi;
    consume(s);
#else
    consume(s);
    if
#ifdef POSTS_BEFORE_PRODUCING
    :: s + 1 < steps[n] -> post_step(met + s + 1); produce(s + 1)
#else
    :: s + 1 < steps[n] -> produce(s + 1); post_step(met + s + 1)
#endif
    :: s + 1 == steps[n] && has_finish -> post_step(met + s + 1)
    :: else
    fi;
#endif
#ifdef FINISHES_EARLY
    if
    :: has_finish -> finish(s)
    :: else
    fi;
#endif
    if
    :: s + 1 < steps[n] || has_finish -> await_step(met + s + 1)
    :: else
    fi;
#ifndef FINISHES_EARLY
    if
    :: has_finish -> finish(s)
    :: else
    fi
#endif
  }
  s = 0
}

inline await_arrivals() {
  if
  :: kind[n] == ONE_SHOT_BROADCAST -> me == ROOT || arrived[ROOT] >= n
  :: else -> of_all(has_arrived)
  fi
}

proctype rank(byte me) {
  byte n, s, p, peer, departing, awaited;
  byte used[2];                    /* Endpoint::stage_used_ */
  for (n : 1 .. OPERATIONS) {
    if
    :: uses_half && is_writer -> claim_half(); produce(0)
#ifdef CLAIMS_WHOLE_EARLY
    :: kind[n] == WHOLE_BROADCAST && is_writer -> produce(0)
#endif
    :: else
    fi;
    arrived[me] = n;
    await_arrivals();
    if
    :: kind[n] == ONE_SHOT || kind[n] == ONE_SHOT_BROADCAST
    :: uses_half -> run_steps(0)
    :: kind[n] == WHOLE_BROADCAST ->
      if
      :: is_writer -> await_departure(used[0]); await_departure(used[1]); used[0] = n; used[1] = n
      :: else
      fi;
      produce(0);
      post_step(1);
      await_step(1);
      run_steps(1)
    fi
  }
}

init {
  byte n;
  atomic {
    for (n : 1 .. OPERATIONS) {
      if
      :: kind[n] = ONE_SHOT
      :: kind[n] = ONE_SHOT_BROADCAST
      :: kind[n] = ALL_REDUCE
      :: kind[n] = ALL_GATHER
      :: kind[n] = BROADCAST
      :: kind[n] = WHOLE_BROADCAST
      :: kind[n] = GATHER
      fi;
#ifdef ONE_KIND
      if
      :: n > 1 && kind[n] != kind[1] -> goto end
      :: else
      fi;
#endif
      if
      :: steps[n] = 1
      :: kind[n] != ONE_SHOT && kind[n] != ONE_SHOT_BROADCAST -> steps[n] = STEPS
      fi
    }
    for (n : 0 .. RANKS - 1) {
      run rank(n)
    }
    n = 0
  }
end:
  skip
}
