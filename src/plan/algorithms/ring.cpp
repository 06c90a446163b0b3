// In each step a rank takes one chunk from its predecessor, and publishes it for its successor. A chunk reaches its
// owner last, so a reduce-scatter begins with the predecessor's chunk and ends with the rank's own, and an all-gather
// begins with the rank's own.

#include "plan/algorithms/ring.hpp"

namespace accord::plan {

void gather_along_ring(PlanBuilder& plan, Rank rank, int size, int first_id) {
  const Rank before = (rank + size - 1) % size, after = (rank + 1) % size;
  if (size > 1) plan.on(rank).signal(after, first_id);
  for (int step = 1; step < size; ++step) {
    const Rank owner = (rank + size - step) % size;
    const bool last = step == size - 1;  // the successor published this chunk itself
    std::vector<Chunk> destinations = {output(rank, owner)};
    if (!last) destinations.push_back(scratch(rank, owner));
    plan.on(rank).wait(before, first_id + step - 1).copy(scratch(before, owner), std::move(destinations));
    if (!last) plan.on(rank).signal(after, first_id + step);
  }
}

void reduce_along_ring(PlanBuilder& plan, Rank rank, int size, std::vector<Chunk> sums) {
  const Rank before = (rank + size - 1) % size, after = (rank + 1) % size;
  if (size == 1) {
    plan.on(rank).copy(input(rank, 0), std::move(sums));
    return;
  }
  plan.on(rank).copy(input(rank, before), {scratch(rank, before)}).signal(after, 0);
  for (int step = 1; step < size; ++step) {
    const int chunk = (rank + 2 * size - 1 - step) % size;
    const bool last = step == size - 1;
    const Chunk so_far = step == 1 ? scratch(before, chunk) : partials(before, step - 2);
    plan.on(rank).wait(before, step - 1);
    plan.on(rank).reduce({so_far, input(rank, chunk)}, last ? sums : std::vector{partials(rank, step - 1)});
    if (!last) plan.on(rank).signal(after, step);
  }
}

}  // namespace accord::plan
