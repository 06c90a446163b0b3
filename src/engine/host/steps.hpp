#pragma once
// The steps of the CPU, one function for each kind of call.

#include <span>

#include "engine/program/preparation.hpp"
#include "engine/program/step_table.hpp"

namespace accord::engine::host {

const StepTable& steps();

/// Runs steps that compute constants, on the calling thread.
Status run_constant_steps(std::span<const Step> steps, std::span<std::byte* const> bases);

// The parts of the table, one for each file.
void set_elementwise_steps(StepTable& table);
void set_row_steps(StepTable& table);
void set_index_steps(StepTable& table);
void set_norm_steps(StepTable& table);
void set_image_steps(StepTable& table);
void set_collective_steps(StepTable& table);
void set_matrix_steps(StepTable& table);
void set_head_linear_steps(StepTable& table);
void set_attention_steps(StepTable& table);
void set_cross_attention_steps(StepTable& table);
void set_recurrence_steps(StepTable& table);
void set_expert_steps(StepTable& table);
void set_exchange_steps(StepTable& table);

}  // namespace accord::engine::host
