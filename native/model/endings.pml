/* Endings: leaving, aborting, timing out and dying while others wait.  Endpoint::leave, check_trouble, fail, set_fault,
 * wake_everybody, declare_dead.
 *
 * RANKS ranks meet OPERATIONS times, with the bells of bells.pml. At any operation a rank may stop and leave, or
 * abort; while it waits it may time out. With DEATHS it may also be killed, even between its post and the bells, and a launcher,
 * here one for each rank, declares it dead. Everybody must end (no invalid end state), whoever throws must throw the group's
 * first fault, and a rank that left after doing its part is no error. With ALL_GOES_WELL all do their part and leave, and
 * nobody may throw.
 *
 * Planted bugs: LEAVES_SILENTLY, FAILS_SILENTLY, WAKES_BEFORE_FAULT, SETS_WITHOUT_EXCHANGE, PUBLISHES_FAULT_EARLY,
 * LOOKS_ONCE_AT_WHO_LEFT.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#define NOBODY 255

mtype = { PRESENT, LEFT, DEAD, ABORTED, TIMED_OUT, PEER_LEFT, PEER_DIED, NO_FAULT };
byte post[RANKS];                                   /* Post.seq */
mtype member[RANKS] = PRESENT;                      /* Member.state */
bool is_killed[RANKS];                              /* known to the kernel, and from it to the launcher */
byte header_sleepers, sleepers[RANKS], word[RANKS];
bool in_futex[RANKS];
byte fault_state;                                   /* Fault.state: none, being written, set */
mtype fault_kind = NO_FAULT;
byte fault_culprit = NOBODY;
mtype first_kind = NO_FAULT;                        /* for the assertions alone: who won the exchange, in one look */
byte first_culprit = NOBODY;

#define ready(r) (post[r] >= n)

/* One step: bells.pml has the two apart. */
#define wake(r) atomic { word[r]++; in_futex[r] = false; bell++ }

inline wake_everybody() {
  do
  :: bell < RANKS -> wake(bell)
  :: bell == RANKS -> bell = 0; break
  od
}

inline wake_sleepers() {
  if
  :: header_sleepers == 0
  :: else ->
    do
    :: bell == RANKS -> bell = 0; break
    :: bell < RANKS && bell != me && sleepers[bell] != 0 -> wake(bell)
    :: atomic { bell < RANKS && (bell == me || sleepers[bell] == 0) -> bell++ }
    od
  fi
}

inline write_fault(kind, culprit) {
#ifdef PUBLISHES_FAULT_EARLY
  fault_state = 2;
#endif
  fault_kind = kind;
  fault_culprit = culprit;
#ifdef WAKES_BEFORE_FAULT
  wake_everybody();
#endif
  fault_state = 2;
#if !defined(FAILS_SILENTLY) && !defined(WAKES_BEFORE_FAULT)
  wake_everybody()
#endif
}

/* The first of all stays; who comes second throws that one. */
inline fail(kind, culprit) {
  if
#ifdef SETS_WITHOUT_EXCHANGE
  :: fault_state != 2 -> atomic { fault_state = 1; first_kind = kind; first_culprit = culprit };
#else
  :: atomic { fault_state == 0 -> fault_state = 1; first_kind = kind; first_culprit = culprit };
#endif
    write_fault(kind, culprit)
  :: else
  fi;
  fault_state == 2;
  goto thrown
}

inline throw_if_faulty() {
  if
  :: fault_state == 2 -> goto thrown
  :: else
  fi
}

inline find_dead() {
  d_step {
    dead = NOBODY;
    for (other : 0 .. RANKS - 1) {
      if
      :: member[other] == DEAD && other != me -> dead = other
      :: else
      fi
    }
    other = 0
  }
}

inline check_trouble() {
  throw_if_faulty();
  find_dead();
  for (other : 0 .. RANKS - 1) {
    if
    :: other == me || ready(other)
    :: else ->
      is_missing = true;
      if
      :: left == NOBODY && member[other] == LEFT ->
        /* It posts everything before it leaves, so look once more after seeing that it left. */
#ifdef LOOKS_ONCE_AT_WHO_LEFT
        left = other
#else
        if
        :: !ready(other) -> left = other
        :: else
        fi
#endif
      :: else
      fi
    fi
  }
  other = 0;
  if
  :: is_missing && left != NOBODY -> throw_if_faulty(); find_dead()
  :: else
  fi;
  if
  :: is_missing && dead != NOBODY -> assert(is_killed[dead]); fail(PEER_DIED, dead)
  :: is_missing && dead == NOBODY && left != NOBODY -> assert(post[left] < n); fail(PEER_LEFT, left)
#ifndef ALL_GOES_WELL
  :: is_missing && dead == NOBODY && left == NOBODY -> fail(TIMED_OUT, NOBODY)
#endif
  :: !is_missing || (dead == NOBODY && left == NOBODY)
  fi;
  atomic { is_missing = false; dead = NOBODY; left = NOBODY }
}

inline await(peer) {
  if
  :: ready(peer)
  :: else ->
    sleepers[me]++;
    atomic { header_sleepers++; is_asleep = true };
    do
    ::
      seen = word[me];
      if
      :: ready(peer) -> break
      :: else
      fi;
      check_trouble();
      if
      :: atomic { word[me] == seen -> seen = 0; in_futex[me] = true }; !in_futex[me]
      :: atomic { word[me] != seen -> seen = 0 }
      fi
    od;
    atomic { seen = 0; header_sleepers--; is_asleep = false };
    sleepers[me]--
  fi
}

active [RANKS] proctype rank() {
  byte me = _pid;
  byte n, peer, other, bell, seen, dead = NOBODY, left = NOBODY;
  bool is_missing, is_asleep;
  for (n : 1 .. OPERATIONS) {
    if
    :: skip
#ifndef ALL_GOES_WELL
    :: goto leaves
    :: fail(ABORTED, me)
#endif
#ifdef DEATHS
    :: goto dies
#endif
    fi;
    throw_if_faulty();
    post[me] = n;
#ifdef DEATHS
    if
    :: skip
    :: goto dies
    fi;
#endif
    wake_sleepers();
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer == me
      :: else -> await(peer)
      fi
    }
    peer = 0
  }
  goto leaves;

thrown:
#ifdef ALL_GOES_WELL
  assert(false);
#endif
  assert(fault_kind == first_kind && fault_culprit == first_culprit);
  if
  :: is_asleep -> header_sleepers--; sleepers[me]--
  :: else
  fi;
  if
  :: skip
  :: goto over                    /* its program has caught the error, and does not close the group yet */
  fi;

leaves:
  atomic { member[me] == PRESENT -> member[me] = LEFT };
#ifndef LEAVES_SILENTLY
  wake_everybody();
#endif
  goto over;

#ifdef DEATHS
dies:
  is_killed[me] = true;
#endif

over:
  skip
}

#ifdef DEATHS
active [RANKS] proctype launcher() {
  byte who = _pid - RANKS, bell;
end:
  is_killed[who] -> member[who] = DEAD;
  wake_everybody()
}
#endif
