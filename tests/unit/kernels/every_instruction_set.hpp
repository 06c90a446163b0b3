#pragma once
// Runs a test once for each instruction set that this machine has.

#include <gtest/gtest.h>

#include <string>

#include "kernels/instruction_set.hpp"

namespace accord::kernels {

/// Tests of this fixture are TEST_Ps; ACCORD_ON_EVERY_INSTRUCTION_SET(Suite) creates their instances.
class EveryInstructionSet : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(use_instruction_set(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(use_instruction_set("").ok()); }
};

}  // namespace accord::kernels

#define ACCORD_ON_EVERY_INSTRUCTION_SET(Suite)                                                \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(::accord::kernels::instruction_sets()), \
                           [](const testing::TestParamInfo<std::string>& instance) { return instance.param; })
