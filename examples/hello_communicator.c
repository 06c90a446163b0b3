/* Adds an array over all ranks: accord run -n 2 build/release/examples/hello_communicator_c */
#include <stdio.h>

#include "accord/accord.h"

static int fail(accord_status_t status) {
  fprintf(stderr, "%s: %s\n", accord_status_name(status), accord_last_error());
  return 1;
}

int main(void) {
  accord_communicator_t* comm;
  accord_status_t status = accord_communicator_from_environment(NULL, &comm);
  if (status != ACCORD_OK) return fail(status);

  int32_t rank, size;
  accord_communicator_rank(comm, &rank);
  accord_communicator_size(comm, &size);
  float values[4];
  for (int i = 0; i < 4; ++i) values[i] = (float)(rank + 1);
  status = accord_all_reduce(comm, values, values, 4, ACCORD_FLOAT32, ACCORD_SUM,
                             NULL); /* in place; the same bits everywhere */
  if (status != ACCORD_OK) return fail(status);
  printf("rank %d of %d: %g %g %g %g\n", (int)rank, (int)size, values[0], values[1], values[2], values[3]);
  accord_communicator_free(comm);
  return 0;
}
