/* How ranks pass rounds to each other through shared memory (src/exec/domain.hpp, cursor.cpp;
   src/comm/channel/channel.cpp for failures). Spin explores the model in every order.
   tests/python/communicator/test_rounds_model.py runs it and lists the variants that must fail.

   Every shared cell is written and read in its own step. Memory is sequentially consistent here. The code stores words
   with release, loads them with acquire, and reads data of another rank only after such a pair.

   Parameters (-D):
     N             ranks, 2 or 3
     SCRATCH, FLAGS, CELLS  the number of rounds of scratch, of flags and packets, and of small packets and records.
                   Round k uses slot k mod that number, and begins once all ranks have completed the round that used
                   the slot before. CELLS defaults to FLAGS
     ROUNDS        the number of rounds of each rank
     CALLS         a mask of the possible calls (see below); the call of each round is chosen freely
     DISAGREE      each rank chooses its own calls, except for the last round, which is a barrier: then all ranks must
                   be notified
     DISAGREE_FREELY  the same without the barrier: a difference may go unnoticed for as long as no rank waits
     DEATH         one rank is killed, at any time
   Variants that break a rule: BROKEN_DEPTH, BROKEN_CLAIM, BROKEN_ROOTED_CLAIM, BROKEN_NO_GATE, BROKEN_EARLY_END,
   BROKEN_WORDS, BROKEN_SILENT_GATE, BROKEN_SILENT_WAIT, BROKEN_SIGNAL_FIRST, BROKEN_FEW_RECORDS, BROKEN_NO_RECORDS,
   BROKEN_NO_HISTORY, BROKEN_BLIND_GATE, BROKEN_NO_ALARM, BROKEN_ALARM_FIRST, BROKEN_NO_DEATHS. */

/* Calls. A call in which each rank waits for all others paces itself: a rank that completes it knows that all have
   begun it. */
#define EXCHANGE        0  /* each rank's scratch is read by all: like two_shot */
#define BROADCAST       1  /* from rank 0, through its scratch */
#define BROADCAST_LAST  2  /* from the last rank, likewise */
#define PACKETS         3  /* each rank's packets to all others */
#define SEND_PACKETS    4  /* small ones from rank 0 to all others */
#define TO_FIRST        5  /* small packets from all others to rank 0 */
#define PUT_TO_FIRST    6  /* all others write to rank 0's scratch */
#define BARRIER         7  /* flags only */

#define USES_SCRATCH(c) (c == EXCHANGE || c == BROADCAST || c == BROADCAST_LAST || c == PUT_TO_FIRST)
#define USES_CELLS(c) (c == SEND_PACKETS || c == TO_FIRST)
#ifndef CELLS
#define CELLS FLAGS
#endif
#define HALF_OF_CELLS (CELLS > 1 -> CELLS / 2 : 1)
#define HALF_OF_FLAGS (FLAGS > 1 -> FLAGS / 2 : 1)
#define PUBLISH_EVERY(c) (USES_CELLS(c) -> (HALF_OF_CELLS < FLAGS -> HALF_OF_CELLS : FLAGS) : HALF_OF_FLAGS)
#define WAITS_FOR_ALL(c) (c == EXCHANGE || c == PACKETS || c == BARRIER)
#define LAST (N - 1)

/* A word contains its round and all calls up to it; the code uses a hash of these. 1, then three bits for each
   round. */
#ifdef BROKEN_WORDS        /* the words do not distinguish rounds */
#define WORD(history, call, round) (8 + call)
#define SAME_ROUND(word, round) (word != 0)
#elif defined(BROKEN_NO_HISTORY)  /* they contain only the round and its own call */
#define WORD(history, call, round) ((1 << (3 * round)) + call)
#define SAME_ROUND(word, round) ((word >> (3 * round)) == 1 && word < (2 << (3 * round)))
#else
#define WORD(history, call, round) history
#define SAME_ROUND(word, round) ((word >> (3 * round)) == 1)
#endif

#ifdef BROKEN_FEW_RECORDS
#define RECORDS SCRATCH
#else
#define RECORDS CELLS
#endif

int flag[N * N * FLAGS];         /* [to][from]: a word */
int packet_word[N * N * FLAGS];  /* [to][from] */
byte packet_data[N * N * FLAGS];
int cell_word[N * N * CELLS];    /* the same of small packets */
byte cell_data[N * N * CELLS];
byte scratch[N * N * SCRATCH];   /* [owner][writer]: the round that wrote it */
int record[N * RECORDS];         /* the word of the round that a rank began last, for each slot */
byte completed[N];               /* the last round that a rank has completed, and the word of it: one cell */
int completed_word[N];
bit alarm[N];
bit notice[N * N];               /* [to][from] */
bit dead[N];

/* Not visible to ranks; used by the checks. */
byte chosen[ROUNDS + 1] = 255;   /* the call of a round, once one rank has begun it */
int history_of[N];               /* all that a rank has called */
bit failed[N];
bit ended[N];

#define FLAG(to, from) flag[(to * N + from) * FLAGS + k % FLAGS]
#define PACKET_WORD(to, from) packet_word[(to * N + from) * FLAGS + k % FLAGS]
#define PACKET_DATA(to, from) packet_data[(to * N + from) * FLAGS + k % FLAGS]
#define CELL_WORD(to, from) cell_word[(to * N + from) * CELLS + k % CELLS]
#define CELL_DATA(to, from) cell_data[(to * N + from) * CELLS + k % CELLS]
#define SCRATCH_OF(owner, writer) scratch[(owner * N + writer) * SCRATCH + k % SCRATCH]

/* A waiting rank polls these from time to time. */
#define DIFFERS(m) (SAME_ROUND(record[m * RECORDS + k % RECORDS], k) && record[m * RECORDS + k % RECORDS] != word)
#if N == 2
#define ANY(is) (is(0) || is(1))
#define ALL(is) (is(0) && is(1))
#else
#define ANY(is) (is(0) || is(1) || is(2))
#define ALL(is) (is(0) && is(1) && is(2))
#endif
#ifdef BROKEN_NO_RECORDS
#define RECORDS_DIFFER false
#else
#define RECORDS_DIFFER (k > 0 && ANY(DIFFERS))
#endif
#define IS_DEAD(m) dead[m]
#ifdef BROKEN_NO_DEATHS
#define A_DEATH false
#else
#define A_DEATH ANY(IS_DEAD)
#endif

#ifdef BROKEN_SILENT_WAIT
#define HAS_MORE_TO_PUBLISH false
#else
#define HAS_MORE_TO_PUBLISH (completed[me] + 1 < k)
#endif

/* A rank that waits for long publishes the rounds that it has completed: a peer may wait for these at the gate of
   another call. */
#define WAIT_FOR(cell)                                  \
  do                                                    \
  :: cell == word -> break                              \
  :: cell != word && SAME_ROUND(cell, k) -> goto fails  \
  :: cell != word && HAS_MORE_TO_PUBLISH ->             \
       d_step { completed[me] = k - 1; completed_word[me] = record[me * RECORDS + (k - 1) % RECORDS] } \
  :: RECORDS_DIFFER -> goto fails                       \
  :: A_DEATH -> goto fails                              \
  :: alarm[me] -> goto notified                         \
  od

/* The gate: all ranks have completed the round that used this slot before. */
#ifdef BROKEN_DEPTH
#define DEPTH ((USES_SCRATCH(call) -> SCRATCH : (USES_CELLS(call) -> CELLS : FLAGS)) + 1)
#else
#define DEPTH (USES_SCRATCH(call) -> SCRATCH : (USES_CELLS(call) -> CELLS : FLAGS))
#endif
#ifdef BROKEN_NO_GATE
#define GATE_IS_OPEN(known) true
#else
#define GATE_IS_OPEN(known) (k + 1 <= (known) + DEPTH)
#endif
#define HAS_COMPLETED(m) (m == me || GATE_IS_OPEN(completed[m]))
#ifdef BROKEN_NO_HISTORY
#define COMPLETED_ANOTHER(m) (completed[m] == k && m != me && completed_word[m] != word && k > 0)
#else
#define OUR_WORD(round) (history >> (3 * (k - round)))
#define COMPLETED_ANOTHER(m) (m != me && completed[m] <= k && completed_word[m] != OUR_WORD(completed[m]))
#endif
#ifdef BROKEN_BLIND_GATE
#define GATE_DIFFERS false
#else
#define GATE_DIFFERS ANY(COMPLETED_ANOTHER)
#endif

/* Runs `action` for each other rank p that satisfies `condition`. */
#define FOR_PEERS(condition, action)                    \
  p = 0;                                                \
  do                                                    \
  :: p < N && p != me && (condition) -> action; p++     \
  :: p < N && !(p != me && (condition)) -> p++          \
  :: p == N -> p = 0; break                             \
  od

#define SEND_DATA(cell) cell = k
#ifdef BROKEN_SIGNAL_FIRST
#define SEND(data, signal) signal; SEND_DATA(data)
#else
#define SEND(data, signal) SEND_DATA(data); signal
#endif
/* The data read is of this round: later data has not overwritten it, and earlier data is not mistaken for it. */
#define READ(cell) assert(cell == k)

inline choose() {
  if
  :: CALLS & 1 -> call = 0
  :: CALLS & 2 -> call = 1
  :: CALLS & 4 -> call = 2
  :: CALLS & 8 -> call = 3
  :: CALLS & 16 -> call = 4
  :: CALLS & 32 -> call = 5
  :: CALLS & 64 -> call = 6
  :: CALLS & 128 -> call = 7
  fi
}

proctype Rank(byte me) provided (!dead[me]) {
  byte k = 0;      /* the round that runs or ran last */
  byte known = 0;  /* a round that all have completed, as far as this rank knows */
  byte call = 255;
  byte p = 0;
  int history = 1;
  int word = 1;
  do
  :: k == ROUNDS -> goto ends
  :: k < ROUNDS ->
    atomic {
#if defined(DISAGREE) || defined(DISAGREE_FREELY)
      if
#ifdef DISAGREE
      :: k + 1 == ROUNDS -> call = BARRIER
      :: k + 1 < ROUNDS ->
#else
      :: true ->
#endif
        choose()
      fi
#else
      if
      :: chosen[k + 1] != 255 -> call = chosen[k + 1]
      :: chosen[k + 1] == 255 -> choose(); chosen[k + 1] = call
      fi
#endif
    }
#ifndef BROKEN_SILENT_GATE  /* completed rounds are published where all ranks wait for them */
    if
    :: USES_SCRATCH(call) -> d_step { completed[me] = k; completed_word[me] = word }
    :: !USES_SCRATCH(call) -> skip
    fi;
#endif
    if
    :: GATE_IS_OPEN(known) -> skip
    :: !GATE_IS_OPEN(known) ->
      if
      :: atomic { ALL(HAS_COMPLETED) && !GATE_DIFFERS ->
           known = k;
           FOR_PEERS(completed[p] < known, known = completed[p]);
           skip }
      :: GATE_DIFFERS -> goto fails
      :: RECORDS_DIFFER -> goto fails
      :: A_DEATH -> goto fails
      :: alarm[me] -> goto notified
      fi
    fi;
    d_step {
      k++;
      history = history * 8 + call;
      history_of[me] = history;
      word = WORD(history, call, k);
      record[me * RECORDS + k % RECORDS] = word
    }
#ifdef BROKEN_EARLY_END  /* a round counts as completed before the peers' data has been read */
    d_step { completed[me] = k; completed_word[me] = word }
#endif
    if
    :: call == EXCHANGE ->
      SEND_DATA(SCRATCH_OF(me, me));
      FOR_PEERS(true, FLAG(p, me) = word);
      FOR_PEERS(true, WAIT_FOR(FLAG(me, p)); READ(SCRATCH_OF(p, p)))
    :: call == BROADCAST && me == 0 ->
      FOR_PEERS(p == 1, SEND(SCRATCH_OF(me, me), FLAG(p, me) = word));
      FOR_PEERS(p != 1, FLAG(p, me) = word)
    :: call == BROADCAST && me != 0 -> WAIT_FOR(FLAG(me, 0)); READ(SCRATCH_OF(0, 0))
    :: call == BROADCAST_LAST && me == LAST ->
      FOR_PEERS(p == 0, SEND(SCRATCH_OF(me, me), FLAG(p, me) = word));
      FOR_PEERS(p != 0, FLAG(p, me) = word)
    :: call == BROADCAST_LAST && me != LAST -> WAIT_FOR(FLAG(me, LAST)); READ(SCRATCH_OF(LAST, LAST))
    :: call == PACKETS ->
      FOR_PEERS(true, SEND(PACKET_DATA(p, me), PACKET_WORD(p, me) = word));
      FOR_PEERS(true, WAIT_FOR(PACKET_WORD(me, p)); READ(PACKET_DATA(me, p)))
    :: call == SEND_PACKETS && me == 0 -> FOR_PEERS(true, SEND(CELL_DATA(p, me), CELL_WORD(p, me) = word))
    :: call == SEND_PACKETS && me != 0 -> WAIT_FOR(CELL_WORD(me, 0)); READ(CELL_DATA(me, 0))
    :: call == TO_FIRST && me != 0 -> SEND(CELL_DATA(0, me), CELL_WORD(0, me) = word)
    :: call == TO_FIRST && me == 0 -> FOR_PEERS(true, WAIT_FOR(CELL_WORD(me, p)); READ(CELL_DATA(me, p)))
    :: call == PUT_TO_FIRST && me != 0 -> SEND(SCRATCH_OF(0, me), FLAG(0, me) = word)
    :: call == PUT_TO_FIRST && me == 0 -> FOR_PEERS(true, WAIT_FOR(FLAG(me, p)); READ(SCRATCH_OF(me, p)))
    :: call == BARRIER ->
      FOR_PEERS(true, FLAG(p, me) = word);
      FOR_PEERS(true, WAIT_FOR(FLAG(me, p)))
    fi;
    skip;
    d_step {
      if  /* where many rounds may be in progress, the others are notified only now and then */
      :: USES_SCRATCH(call) || k % PUBLISH_EVERY(call) == 0 -> completed[me] = k; completed_word[me] = word
      :: !USES_SCRATCH(call) && k % PUBLISH_EVERY(call) != 0 -> skip
      fi;
#ifdef BROKEN_CLAIM
      known = (WAITS_FOR_ALL(call) -> k : known);
#elif defined(BROKEN_ROOTED_CLAIM)
      known = k - 1;
#else
      known = (WAITS_FOR_ALL(call) -> k - 1 : known);
#endif
      call = 255
    }
  od;

fails:  /* a rank that detects a failure notifies all others */
#ifndef BROKEN_NO_ALARM
#ifdef BROKEN_ALARM_FIRST
  FOR_PEERS(true, alarm[p] = 1; notice[p * N + me] = 1);
#else
  FOR_PEERS(true, notice[p * N + me] = 1; alarm[p] = 1);
#endif
#endif
  failed[me] = 1;
  goto ends;

notified:  /* a notified rank knows the reason */
  p = 0;
  do
  :: p < N && notice[me * N + p] -> break
  :: p < N && !notice[me * N + p] -> p++
  :: p == N -> assert(false)
  od;
  failed[me] = 1;

ends:
  atomic { p = 0; call = 0; known = 0; word = 0; ended[me] = 1 }
}

#define HAS_ENDED(m) (dead[m] || ended[m])
#define IS_NOTIFIED(m) (dead[m] || failed[m] || alarm[m])
#define SUCCEEDED(m) (dead[m] || !(failed[m] || alarm[m]))
#define AGREES(m) (history_of[m] == history_of[0])
/* Calls that every later gate has checked. */
#define OLD(m) (history_of[m] >> (3 * 2 * CELLS))

/* When no process can continue, all ranks must have ended correctly. */
proctype Judge() {
  timeout;
  d_step {
    assert(ALL(HAS_ENDED));  /* or a wake-up was lost */
#if defined(DEATH)
    skip
#elif defined(DISAGREE)
    assert((ALL(AGREES) && ALL(SUCCEEDED)) || ALL(IS_NOTIFIED))
#elif defined(DISAGREE_FREELY)
    assert(ALL(SUCCEEDED) || ALL(IS_NOTIFIED));
    assert(OLD(0) == OLD(1) && OLD(0) == OLD(LAST) || ALL(IS_NOTIFIED))
#else
    assert(ALL(SUCCEEDED))
#endif
  }
}

#ifdef DEATH
proctype Killer() {
  byte victim;
  select(victim : 0 .. LAST);
  if
  :: dead[victim] = 1
  :: ended[victim] -> skip
  fi
}
#endif

init {
  atomic {
    byte m = 0;
    do
    :: m < N -> completed_word[m] = 1; history_of[m] = 1; run Rank(m); m++
    :: m == N -> break
    od;
    m = 0;
#ifdef DEATH
    run Killer();
#endif
    run Judge()
  }
}
