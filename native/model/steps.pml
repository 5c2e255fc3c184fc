/* Step words: does Progress.step_of with Progress.step say what one pair (operation, step) would?
 * Endpoint::post_step and await_step, with the bells of bells.pml.
 *
 * A writer posts STEPS steps in each of OPERATIONS operations and waits for nobody, so that it may be in any later one while the
 * reader waits for (n, s). The reader must not go on too early (an assertion) and must not sleep for ever (an invalid end state).
 *
 * Planted bugs: NAMES_BEFORE_CLEARING, DOES_NOT_CLEAR, COMPARES_STEP_ONLY.
 */
#ifndef OPERATIONS
#define OPERATIONS 3
#endif
#ifndef STEPS
#define STEPS 2
#endif

byte step_of, step;               /* the writer's Progress.step_of and Progress.step */
byte posted_of, posted;           /* what it has posted, in one look: for the assertion alone */
byte sleepers, word;              /* the reader's bell and its count, which the header's repeats */
bool in_futex;

inline post_step(n, s) {
  if
  :: step_of != n ->              /* the first step of an operation; only the writer writes step_of */
#ifdef NAMES_BEFORE_CLEARING
    step_of = n;                  /* what a peer would see if the two stores might change places */
    step = 0
#else
#ifndef DOES_NOT_CLEAR
    step = 0;                     /* relaxed: the release that follows publishes it */
#endif
    step_of = n                   /* release */
#endif
  :: else
  fi;
  atomic { step = s; posted_of = n; posted = s };  /* seq_cst */
  if
  :: sleepers == 0
  :: else -> word++; in_futex = false
  fi
}

/* Two looks, with anything in between. Greater: the writer is beyond that operation. Less: it has not come. */
inline look(n, s) {
#ifdef COMPARES_STEP_ONLY
  is_ready = step >= s
#else
  of_what = step_of;
  if
  :: of_what > n -> is_ready = true
  :: of_what < n -> is_ready = false
  :: of_what == n -> is_ready = step >= s
  fi;
  of_what = 0
#endif
}

active proctype writer() {
  byte n, s;
  for (n : 1 .. OPERATIONS) {
    for (s : 1 .. STEPS) {
      post_step(n, s)
    }
  }
}

active proctype reader() {
  byte n, s, of_what, seen;
  bool is_ready;
  for (n : 1 .. OPERATIONS) {
    for (s : 1 .. STEPS) {
      look(n, s);
      if
      :: is_ready
      :: else ->
        sleepers++;
        do
        ::
          seen = word;
          look(n, s);
          if
          :: is_ready -> break
          :: else
          fi;
          if
          :: atomic { word == seen -> in_futex = true }; !in_futex
          :: word != seen
          fi
        od;
        sleepers--
      fi;
      assert(posted_of > n || (posted_of == n && posted >= s))
    }
  }
}
