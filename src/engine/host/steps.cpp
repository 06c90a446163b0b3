#include "engine/host/steps.hpp"

namespace accord::engine::host {

const StepTable& steps() {
  static const StepTable* const table = [] {
    auto* const made = new StepTable(false);
    set_elementwise_steps(*made);
    set_row_steps(*made);
    set_index_steps(*made);
    set_norm_steps(*made);
    set_image_steps(*made);
    set_collective_steps(*made);
    set_matrix_steps(*made);
    set_head_linear_steps(*made);
    set_attention_steps(*made);
    set_cross_attention_steps(*made);
    set_recurrence_steps(*made);
    set_expert_steps(*made);
    set_exchange_steps(*made);
    return made;
  }();
  return *table;
}

}  // namespace accord::engine::host
