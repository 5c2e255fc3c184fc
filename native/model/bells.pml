/* Bells: does a rank that goes to sleep always wake?  Endpoint::publish, wake_sleepers, await_slowly, Asleep.
 *
 * Every rank posts and waits for all others, MEETINGS times. Odd meetings wait for posts (await_arrivals), even ones for
 * `arrived` (await_departure), whose store is the one before; with AWAITS_ARRIVED all do. There are no time slices: who is not woken sleeps for ever, and
 * spin reports an invalid end state.
 *
 * Planted bugs: LOOKS_BEFORE_STORE, LOOKS_BEFORE_COUNTING, READS_WORD_LATE, DOES_NOT_RAISE, ARRIVES_LATE, RELEASE_ONLY.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef MEETINGS
#define MEETINGS 2
#endif

byte arrived[RANKS], post[RANKS];              /* Progress.arrived, Post.seq */
byte header_sleepers, sleepers[RANKS];         /* Header.sleepers, Bell.sleepers */
byte word[RANKS];                              /* Bell.word */
bool in_futex[RANKS];                          /* the kernel's list of who waits on a word */

/* With BUFFERS a rank's stores go through a queue, in order, as on x86: peers see them later than the rank goes on. A
 * sequentially consistent store waits until the queue is empty (the mfence or xchg); so does every read-modify-write. */
#ifdef BUFFERS
mtype = { ARRIVED, POST };
chan queue[RANKS] = [2] of { mtype, byte };
#define store_arrived(n) queue[me]!ARRIVED,n
#define store_post(n)    queue[me]!POST,n
#define drain            empty(queue[me])
#else
#define store_arrived(n) arrived[me] = n
#define store_post(n)    post[me] = n
#define drain            true
#endif

inline store() {
#ifndef ARRIVES_LATE
  store_arrived(n);
#endif
  store_post(n);
#ifndef RELEASE_ONLY
  drain;
#endif
}

inline wake_sleepers() {
  if
  :: !is_anybody_asleep -> skip
  :: else ->
    peer = 0;
    do
    :: atomic { peer == RANKS -> peer = 0; break }
    :: atomic { peer < RANKS && (peer == me || sleepers[peer] == 0) -> peer++ }
    :: peer < RANKS && peer != me && sleepers[peer] != 0 ->
#ifndef DOES_NOT_RAISE
      atomic { drain -> word[peer]++ };
#endif
      atomic { in_futex[peer] = false; peer++ }
    od
  fi
}

#ifdef AWAITS_ARRIVED
#define ready (arrived[peer] >= n)
#else
#define ready ((n % 2 == 1 && post[peer] >= n) || (n % 2 == 0 && arrived[peer] >= n))
#endif

/* futex(FUTEX_WAIT): the kernel compares and queues in one step. */
inline futex_wait() {
  if
  :: atomic { word[me] == seen -> in_futex[me] = true }; !in_futex[me]
  :: word[me] != seen
  fi
}

inline await(peer) {
  if
  :: ready -> skip
  :: else ->
#ifdef LOOKS_BEFORE_COUNTING
    seen = word[me];
    was_ready = ready;
#endif
    atomic { drain -> sleepers[me]++ };
    atomic { drain -> header_sleepers++ };
    do
    ::
#ifdef LOOKS_BEFORE_COUNTING
      skip
#elif defined(READS_WORD_LATE)
      was_ready = ready;
      seen = word[me]
#else
      seen = word[me];
      was_ready = ready
#endif
      ;
      if
      :: was_ready -> break
      :: else
      fi;
      futex_wait();
#ifdef LOOKS_BEFORE_COUNTING
      seen = word[me];
      was_ready = ready
#endif
    od;
    atomic { drain -> header_sleepers--; seen = 0; was_ready = false };
    atomic { drain -> sleepers[me]-- }
  fi
}

active [RANKS] proctype rank() {
  byte me = _pid;
  byte n, peer, other, seen;
  bool is_anybody_asleep, was_ready;
  for (n : 1 .. MEETINGS) {
#ifdef LOOKS_BEFORE_STORE
    is_anybody_asleep = header_sleepers != 0;
    store();
#else
    store();
    is_anybody_asleep = header_sleepers != 0;
#endif
    wake_sleepers();
    is_anybody_asleep = false;
#ifdef ARRIVES_LATE
    store_arrived(n);
#endif
    for (other : 0 .. RANKS - 1) {
      if
      :: other == me -> skip
      :: else -> await(other)
      fi
    }
  }
}

#ifdef BUFFERS
active [RANKS] proctype memory() {
  byte owner = _pid - RANKS, n;
end:
  do
  :: atomic { queue[owner]?ARRIVED,n -> arrived[owner] = n; n = 0 }
  :: atomic { queue[owner]?POST,n -> post[owner] = n; n = 0 }
  od
}
#endif
