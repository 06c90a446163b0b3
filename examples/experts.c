/* A mixture of experts over ranks, where expert e multiplies by e + 1:
 *   accord run -n 2 build/release/examples/experts_c */
#include <stdio.h>
#include <stdlib.h>

#include "accord/accord.h"

enum { EXPERTS = 8, TOP_K = 2, HIDDEN = 4, TOKENS = 3 };

static void check(accord_status_t status) {
  if (status == ACCORD_OK) return;
  fprintf(stderr, "%s: %s\n", accord_status_name(status), accord_last_error());
  exit(1);
}

int main(void) {
  accord_communicator_t* comm;
  check(accord_communicator_from_environment(NULL, &comm));
  int32_t rank;
  check(accord_communicator_rank(comm, &rank));

  accord_expert_config_t config = ACCORD_EXPERT_CONFIG_INIT;
  config.experts = EXPERTS;
  config.top_k = TOP_K;
  config.hidden = HIDDEN;
  config.max_tokens_per_rank = TOKENS;
  config.dtype = ACCORD_FLOAT32;
  accord_expert_group_t* group;
  accord_expert_handle_t* handle; /* one for each layer and microbatch in flight */
  check(accord_expert_group_create(comm, &config, &group));
  check(accord_expert_handle_create(group, NULL, &handle));

  /* The output of a router: the experts that each token chose, and their weights. */
  int32_t chosen[TOKENS][TOP_K];
  float weights[TOKENS][TOP_K], tokens[TOKENS][HIDDEN];
  for (int t = 0; t < TOKENS; ++t) {
    for (int k = 0; k < TOP_K; ++k) {
      chosen[t][k] = (3 * rank + t + 5 * k) % EXPERTS;
      weights[t][k] = k == 0 ? 0.75F : 0.25F;
    }
    for (int h = 0; h < HIDDEN; ++h) tokens[t][h] = (float)(t + 1);
  }
  accord_expert_routing_t routing = ACCORD_EXPERT_ROUTING_INIT;
  routing.ids = chosen;
  routing.ids_dtype = ACCORD_INT32;
  routing.tokens = TOKENS;
  check(accord_expert_prepare(group, handle, &routing));
  accord_expert_map_t map = ACCORD_EXPERT_MAP_INIT;
  check(accord_expert_handle_map(handle, &map));

  float* slots = malloc(((size_t)map.recv_rows + 1) * HIDDEN * sizeof(float));
  int64_t* counts = malloc((size_t)map.local_experts * sizeof(int64_t));
  if (slots == NULL || counts == NULL) return 1;
  accord_expert_rows_t rows = ACCORD_EXPERT_ROWS_INIT;
  rows.dtype = ACCORD_FLOAT32;
  rows.tokens = tokens;
  rows.slots = slots;
  check(accord_expert_dispatch(group, handle, &rows));

  /* Runs this rank's experts one after the other, each on its rows. */
  check(accord_expert_handle_counts(handle, counts, NULL, (size_t)map.local_experts));
  float* row = slots;
  for (int32_t local = 0; local < map.local_experts; ++local)
    for (int64_t i = 0; i < counts[local]; ++i, row += HIDDEN)
      for (int h = 0; h < HIDDEN; ++h) row[h] *= (float)(rank * map.local_experts + local + 1);

  float result[TOKENS][HIDDEN];
  rows.tokens = result;
  rows.weights = weights;
  check(accord_expert_combine(group, handle, &rows));
  for (int t = 0; t < TOKENS; ++t)
    printf("rank %d token %d of experts %d and %d: %g\n", (int)rank, t, (int)chosen[t][0], (int)chosen[t][1],
           result[t][0]);

  free(counts);
  free(slots);
  accord_expert_handle_free(handle);
  accord_expert_group_free(group);
  accord_communicator_free(comm);
  return 0;
}
