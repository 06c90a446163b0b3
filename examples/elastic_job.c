/* A job that goes on when ranks die: accord run --elastic 1:4 ./elastic_job_c */
#include <stdio.h>

#include "accord/accord.h"

static int fail(const char* call) {
  fprintf(stderr, "%s: %s\n", call, accord_last_error());
  return 1;
}

/* Receives the state of the rank that has finished most steps. */
static accord_status_t synchronize(accord_elastic_group_t* elastic, accord_communicator_t* communicator,
                                   int64_t* steps) {
  int32_t source;
  accord_status_t status = accord_elastic_group_most_advanced(elastic, *steps, &source);
  if (status != ACCORD_OK) return status;
  return accord_broadcast(communicator, steps, 1, ACCORD_INT64, source, NULL);
}

int main(void) {
  accord_elastic_group_t* elastic;
  if (accord_elastic_group_from_environment(NULL, &elastic) != ACCORD_OK) return fail("elastic group");
  int64_t steps = -1; /* nothing that others could use */
  while (steps < 1000) {
    accord_communicator_t* communicator;
    if (accord_elastic_group_form(elastic, &communicator) != ACCORD_OK) return fail("form");
    if (communicator == NULL) break; /* another rank has finished the job */
    if (synchronize(elastic, communicator, &steps) == ACCORD_OK) {
      for (steps = steps < 0 ? 0 : steps; steps < 1000; ++steps) {
        int32_t waits = 0;
        accord_status_t status = accord_elastic_group_others_wait(elastic, &waits);
        if (status != ACCORD_OK || waits || accord_barrier(communicator, NULL) != ACCORD_OK) break; /* form again */
      }
    }
    if (steps == 1000 && accord_elastic_group_finish(elastic) != ACCORD_OK) return fail("finish");
    accord_communicator_free(communicator);
  }
  accord_elastic_group_free(elastic);
  return 0;
}
