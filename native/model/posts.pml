/* Posts: a ring that is written again and again.  Endpoint::begin, publish, await_arrivals, await_departure, compare_unseen.
 *
 * RANKS ranks do OPERATIONS operations over rings of RING posts. Each operation is, by choice, a meeting of all (an all_reduce in
 * one shot), or one that only needs the root's post (a broadcast): there the root goes on at once and all look at the others'
 * posts later, at the next meeting of all or before the post is reused ("unseen"). A post's two parts hold the operation's number:
 * who reads another one has read a post that was overwritten, or not yet written. Waits block, so a wait for ever is an
 * invalid end state.
 *
 * Planted bugs: DOES_NOT_AWAIT_DEPARTURE, DEPARTS_EARLY, PUBLISHES_EARLY, DOES_NOT_CLEAR, LOOKS_ONCE.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef RING
#define RING 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 5
#endif
#define NONE 255
#define post(r) (r) * RING + n % RING
#define old(r)  (r) * RING + unseen % RING

byte seq[RANKS * RING];           /* Post.seq */
byte signature[RANKS * RING];     /* Post.signature and count */
byte payload[RANKS * RING];       /* Post.payload, factor, place, or the slot beside it */
byte arrived[RANKS];              /* Progress.arrived */
bool is_meeting[OPERATIONS + 1];
byte root[OPERATIONS + 1];

inline await_departure(u) {
  for (peer : 0 .. RANKS - 1) {
#ifdef DEPARTS_EARLY
    peer == me || arrived[peer] >= u
#else
    peer == me || arrived[peer] > u
#endif
  }
  peer = 0
}

/* A post that was overwritten is passed over; one that was not must say what this rank has called. */
inline compare_unseen() {
  assert(seq[old(me)] == unseen);
  for (peer : 0 .. RANKS - 1) {
    if
    :: seq[old(peer)] == unseen ->
      looked = signature[old(peer)];
#ifndef LOOKS_ONCE
      if
      :: seq[old(peer)] == unseen -> assert(looked == unseen)
      :: else
      fi
#else
      assert(looked == unseen)
#endif
    :: else
    fi;
    looked = 0
  }
  peer = 0;
  unseen = NONE
}

inline publish() {
#ifdef PUBLISHES_EARLY
  seq[post(me)] = n;
#elif !defined(DOES_NOT_CLEAR)
  seq[post(me)] = 0;
#endif
  atomic { signature[post(me)] = n; payload[post(me)] = n };
  arrived[me] = n;
  seq[post(me)] = n
}

inline take(r) {
  seq[post(r)] == n;
  assert(signature[post(r)] == n && payload[post(r)] == n)
}

proctype rank(byte me) {
  byte n, peer, looked, unseen = NONE;    /* of the operations that it has not seen, the oldest */
  for (n : 1 .. OPERATIONS) {
#ifndef DOES_NOT_AWAIT_DEPARTURE
    if
    :: n > RING -> await_departure((n - RING))
    :: else
    fi;
#endif
    if
    :: unseen != NONE && unseen + RING <= n -> compare_unseen()
    :: else
    fi;
    publish();
    if
    :: is_meeting[n] ->
      for (peer : 0 .. RANKS - 1) {
        take(peer)
      }
      peer = 0;
      if
      :: unseen != NONE -> compare_unseen()
      :: else
      fi
    :: else ->
      if
      :: unseen == NONE -> unseen = n
      :: else
      fi;
      if
      :: root[n] != me -> take(root[n])
      :: else
      fi
    fi
  }
}

init {
  byte n;
  atomic {
    for (n : 1 .. OPERATIONS) {
      if
      :: is_meeting[n] = true
      :: root[n] = 0
      :: root[n] = RANKS - 1
      fi
    }
    for (n : 0 .. RANKS - 1) {
      run rank(n)
    }
    n = 0
  }
}
