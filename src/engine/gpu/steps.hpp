#pragma once
// The steps of GPUs, one function for each kind of call.

#include "engine/program/preparation.hpp"
#include "engine/program/step_table.hpp"

namespace accord::engine::gpu {

const StepTable& steps();

// The parts of the table, one for each file.
void set_elementwise_steps(StepTable& table);
void set_row_steps(StepTable& table);
void set_index_steps(StepTable& table);
void set_norm_steps(StepTable& table);
void set_image_steps(StepTable& table);
void set_collective_steps(StepTable& table);
void set_matrix_steps(StepTable& table);
void set_attention_steps(StepTable& table);
void set_expert_steps(StepTable& table);

}  // namespace accord::engine::gpu
