/* What a C program does with accord.h, compiled as C99 with all warnings as errors: the macros, the structs with their
 * fields by name, every call, and freeing everything at the end. */
#include "unit/c/c99_rank.h"

#include <string.h>

#if !defined(__STDC_VERSION__) || __STDC_VERSION__ != 199901L || defined(__cplusplus)
#error this file is C99
#endif

enum { MOST_RANKS = 8 };

#define CHECK(condition) \
  if (!(condition)) return __LINE__
#define CHECK_OK(expression) CHECK((expression) == ACCORD_OK)

static int call_all_by_name(accord_communicator_t* comm, int32_t rank, int32_t size) {
  const float mine = (float)(rank + 1);
  float one = 0, all[MOST_RANKS] = {0};
  accord_call_options_t options = ACCORD_CALL_OPTIONS_INIT;
  options.timeout_ns = 30000000000;
  CHECK_OK(accord_barrier(comm, &options));
  CHECK_OK(accord_all_reduce(comm, &mine, &one, 1, ACCORD_FLOAT32, ACCORD_SUM, &options));
  CHECK(one == (float)(size * (size + 1) / 2));
  CHECK_OK(accord_all_gather(comm, &mine, all, 1, ACCORD_FLOAT32, NULL));
  for (int32_t r = 0; r < size; ++r) CHECK(all[r] == (float)(r + 1));
  CHECK_OK(accord_reduce_scatter(comm, all, &one, 1, ACCORD_FLOAT32, ACCORD_MAX, NULL));
  CHECK(one == (float)(rank + 1));
  CHECK_OK(accord_all_to_all(comm, all, all, 1, ACCORD_FLOAT32, NULL));
  for (int32_t r = 0; r < size; ++r) CHECK(all[r] == (float)(rank + 1));
  CHECK_OK(accord_reduce(comm, &mine, rank == 0 ? &one : NULL, 1, ACCORD_FLOAT32, ACCORD_MIN, 0, NULL));
  CHECK(rank != 0 || one == 1);
  CHECK_OK(accord_gather(comm, &mine, rank == 0 ? all : NULL, 1, ACCORD_FLOAT32, 0, NULL));
  CHECK(rank != 0 || all[size - 1] == (float)size);
  CHECK_OK(accord_scatter(comm, rank == 0 ? all : NULL, &one, 1, ACCORD_FLOAT32, 0, NULL));
  CHECK(one == mine);
  CHECK_OK(accord_broadcast(comm, &one, 1, ACCORD_FLOAT32, size - 1, NULL));
  CHECK(one == (float)size);
  if (rank == 0) CHECK_OK(accord_send(comm, &mine, 1, ACCORD_FLOAT32, 1, NULL));
  if (rank == 1) CHECK_OK(accord_recv(comm, &one, 1, ACCORD_FLOAT32, 0, NULL));
  CHECK(rank != 1 || one == 1);
  return 0;
}

static int start_and_split(accord_communicator_t* comm, int32_t rank, int32_t size) {
  int64_t value = rank;
  const accord_call_t call = {.struct_size = sizeof(accord_call_t),
                              .kind = ACCORD_CALL_ALL_REDUCE,
                              .dtype = ACCORD_INT64,
                              .input = &value,
                              .input_count = 1,
                              .output = &value,
                              .output_count = 1,
                              .op = ACCORD_MAX};
  accord_work_t* work = NULL;
  int32_t done = 0, rank_of_part = -1;
  accord_communicator_t* part = NULL;
  CHECK_OK(accord_start(comm, &call, NULL, &work));
  CHECK_OK(accord_work_wait_for(work, INT64_MAX, &done));
  CHECK(done == 1 && value == size - 1);
  CHECK_OK(accord_work_status(work));
  accord_work_free(work);

  CHECK_OK(accord_communicator_split(comm, 0, -rank, "turned", &part));
  CHECK_OK(accord_communicator_rank(part, &rank_of_part));
  CHECK(rank_of_part == size - 1 - rank);
  CHECK_OK(accord_barrier(part, NULL));
  accord_communicator_free(part);
  return 0;
}

int run_c99_rank(accord_store_t* store, int32_t rank, int32_t size) {
  accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
  accord_tcp_store_options_t unused = ACCORD_TCP_STORE_OPTIONS_INIT;
  accord_communicator_t* comm = NULL;
  const char* name = NULL;
  size_t faults = 1;
  int failed;
  (void)unused;
  options.name = "c99";
  CHECK(accord_communicator_rank(NULL, &rank) == ACCORD_INVALID_ARGUMENT);
  CHECK(strstr(accord_last_error(), "communicator is null") != NULL);
  (void)accord_last_error_ranks(&faults);
  CHECK(faults == 0);
  CHECK_OK(accord_communicator_create(store, rank, size, &options, &comm));
  CHECK_OK(accord_communicator_name(comm, &name));
  CHECK(strcmp(name, "c99") == 0);
  failed = call_all_by_name(comm, rank, size);
  if (failed == 0) failed = start_and_split(comm, rank, size);
  accord_communicator_free(comm);
  return failed;
}
