// A step's plan as bytes: written, read, and rejected if damaged.
#include "engine/serving/step_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/hash.hpp"
#include "engine/serving/plan_message.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

constexpr PlanLimits kLimits = {
    .blocks = 20, .block_tokens = 4, .max_context = 64, .vocabulary = 100, .max_sequences = 8, .max_rows = 32};

// Two sequences: one decodes its 6th token, the other computes 3 tokens after 8.
StepPlan plan_of_two() {
  StepPlan plan;
  plan.step = 0x123456789A;
  plan.block_tokens = 4;
  plan.sequences = {{0, 1, 5, 0, 2}, {1, 3, 8, 2, 3}};
  plan.tokens = {9, 10, 11, 99};
  plan.positions = {5, 8, 9, 10};
  plan.blocks = {4, 19, 0, 1, 2};
  plan.copies = {{3, 19}};
  plan.logit_rows = {0, 3};
  return plan;
}

std::vector<std::byte> packed(const StepPlan& plan) {
  std::vector<std::byte> bytes;
  pack(plan, bytes);
  return bytes;
}

void seal(std::vector<std::byte>& bytes) {
  const std::uint64_t hash = xxh3(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, 8);
}

TEST(StepPlan, is_read_back_as_written) {
  const StepPlan plan = plan_of_two();
  const auto bytes = packed(plan);
  EXPECT_EQ(bytes.size(), 48U + 4 * (4 + 5 + 2) + 8 * 1 + 24 * 2);
  StepPlan read;
  const Status status = unpack(bytes, kLimits, read);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(read, plan);
}

TEST(StepPlan, adapters_of_sequences_are_read_back_and_checked) {
  PlanLimits limits = kLimits;
  limits.adapters = {"sql", "de"};
  StepPlan plan = plan_of_two();
  plan.sequences[1].adapter = 2;
  StepPlan read;
  EXPECT_TRUE(unpack(packed(plan), limits, read).ok());
  EXPECT_EQ(read, plan);
  for (const std::int32_t wrong : {-1, 3}) {
    plan.sequences[1].adapter = wrong;
    EXPECT_THAT(unpack(packed(plan), limits, read).message(),
                HasSubstr("with adapter " + std::to_string(wrong) + " of 2"));
  }
}

constexpr PlanLimits kLimitsWithSources = {.blocks = 20,
                                           .block_tokens = 4,
                                           .max_context = 64,
                                           .vocabulary = 100,
                                           .max_sequences = 8,
                                           .max_rows = 32,
                                           .max_source = 9};

// The same, where both sequences have a source, and that of the second one is new.
StepPlan plan_with_sources() {
  StepPlan plan = plan_of_two();
  plan.sequences = {{0, 1, 5, 0, 2, 3}, {1, 3, 8, 3, 3, 9}};
  plan.blocks = {4, 19, 5, 0, 1, 2, 6, 7, 8};
  const std::vector<SourceTensor> tensors = {{DType::kInt64, {2}, std::vector<std::byte>(16, std::byte{1})},
                                             {DType::kFloat32, {1, 3}, std::vector<std::byte>(12, std::byte{2})},
                                             {DType::kUInt8, {0}, {}}};
  plan.sources = {{1, std::make_shared<const std::vector<SourceTensor>>(tensors)}};
  return plan;
}

TEST(StepPlan, sources_are_read_back_as_written) {
  const StepPlan plan = plan_with_sources();
  StepPlan read;
  const Status status = unpack(packed(plan), kLimitsWithSources, read);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(read, plan);
  EXPECT_THAT(read.source_table(read.sequences[0]), ::testing::ElementsAre(5));
  EXPECT_THAT(read.source_table(read.sequences[1]), ::testing::ElementsAre(6, 7, 8));
  EXPECT_THAT(read.table(read.sequences[1]), ::testing::ElementsAre(0, 1, 2));
}

// The same sequences, where token 7 stands for a row of a source, and the second one's is in slot 2.
constexpr PlanLimits limits_with_slots() {
  PlanLimits limits = kLimitsWithSources;
  limits.source_token = 7;
  return limits;
}
StepPlan plan_with_slots() {
  StepPlan plan = plan_of_two();
  plan.sequences = {{0, 1, 5, 0, 2}, {1, 3, 8, 2, 3, 9, 2, 4}};
  plan.sources = {{1, plan_with_sources().sources[0].tensors}};
  return plan;
}

TEST(StepPlan, slots_are_read_back_as_written) {
  const StepPlan plan = plan_with_slots();
  StepPlan read;
  const Status status = unpack(packed(plan), limits_with_slots(), read);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(read, plan);
  EXPECT_TRUE(read.source_table(read.sequences[1]).empty());
}

TEST(StepPlan, wrong_slots_are_rejected) {
  const auto message = [](auto change) {
    StepPlan plan = plan_with_slots();
    change(plan.sequences[1]);
    return check_plan(plan, limits_with_slots()).message();
  };
  EXPECT_THAT(message([](PlannedSequence& one) { one.source_slot = 8; }), HasSubstr("9 rows is in slot 8"));
  EXPECT_THAT(message([](PlannedSequence& one) { one.source_slot = -1; }), HasSubstr("9 rows is in slot -1"));
  EXPECT_THAT(message([](PlannedSequence& one) { one.source_rows = 0; }), HasSubstr("0 rows is in slot 2"));
  EXPECT_THAT(message([](PlannedSequence& one) { one.first_source_row = 10; }), HasSubstr("row 10 of a source of 9"));
  EXPECT_THAT(check_plan(plan_with_slots(), kLimitsWithSources).message(), HasSubstr("9 rows is in slot 2"));
}

TEST(StepPlan, wrong_sources_are_rejected) {
  StepPlan plan = plan_with_sources();
  EXPECT_THAT(check_plan(plan, kLimits).message(), HasSubstr("a source of 3 rows"));
  plan.sources[0].sequence = 2;
  EXPECT_THAT(check_plan(plan, kLimitsWithSources).message(), HasSubstr("a source of sequence 2"));
  plan.sources[0].sequence = 0;
  EXPECT_TRUE(check_plan(plan, kLimitsWithSources).ok());
  plan.sources.push_back(plan.sources[0]);
  EXPECT_THAT(check_plan(plan, kLimitsWithSources).message(), HasSubstr("a source of sequence 0"));
  const auto bytes = packed(plan_with_sources());
  StepPlan read;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    EXPECT_EQ(unpack(std::span(bytes).first(i), kLimitsWithSources, read).code(), StatusCode::kCorrupt);
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    auto changed = bytes;
    changed[random() % changed.size()] = static_cast<std::byte>(random() % 256);
    seal(changed);
    const bool is_read = unpack(changed, kLimitsWithSources, read).ok();
    EXPECT_TRUE(!is_read || check_plan(read, kLimitsWithSources).ok());
  }
}

TEST(StepPlan, every_damaged_byte_and_every_truncation_is_detected) {
  const auto bytes = packed(plan_of_two());
  StepPlan read;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_EQ(unpack(damaged, kLimits, read).code(), StatusCode::kCorrupt);
    EXPECT_EQ(read, StepPlan());
    EXPECT_EQ(unpack(std::span(bytes).first(i), kLimits, read).code(), StatusCode::kCorrupt);
  }
}

TEST(StepPlan, bytes_with_a_valid_hash_give_a_valid_plan_or_an_error) {
  std::mt19937 random(3);
  const auto bytes = packed(plan_of_two());
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto changed = bytes;
    for (int change = 0; change < 2; ++change)
      changed[random() % changed.size()] = static_cast<std::byte>(random() % 8);
    seal(changed);
    StepPlan read;
    const Status status = unpack(changed, kLimits, read);
    if (status.ok()) {
      EXPECT_TRUE(check_plan(read, kLimits).ok());
      EXPECT_EQ(packed(read), changed);
    }
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 10000);
}

TEST(StepPlan, fields_that_do_not_fit_the_model_are_named) {
  const auto complaint = [](auto change) {
    StepPlan plan = plan_of_two();
    change(plan);
    StepPlan read;
    const Status status = unpack(packed(plan), kLimits, read);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_EQ(check_plan(plan, kLimits).code(), StatusCode::kCorrupt);
    return status.message();
  };
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.tokens[1] = 100; }),
              HasSubstr("token 100 is outside the vocabulary of 100"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.blocks[2] = 20; }),
              HasSubstr("block 20 does not exist in a cache of 20 blocks"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.blocks.pop_back(); }), HasSubstr("its tables have 4 blocks"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.copies[0].to = -1; }), HasSubstr("copies block 3 to block -1"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.logit_rows = {3, 0}; }), HasSubstr("logits of row 0"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.logit_rows = {4}; }), HasSubstr("logits of row 4 of 4"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.sequences[1].context = 62; }), HasSubstr("3 rows after 62"));
  EXPECT_THAT(complaint([](StepPlan& plan) { plan.block_tokens = 8; }), HasSubstr("blocks have 8 tokens"));
}

TEST(StepPlan, messages_have_a_kind) {
  std::vector<std::byte> bytes;
  StepPlan read;
  write_message(PlanMessage::kStep, plan_of_two(), bytes);
  EXPECT_EQ(read_message(bytes, kLimits, read).value(), PlanMessage::kStep);
  EXPECT_EQ(read, plan_of_two());
  for (const PlanMessage kind : {PlanMessage::kIdle, PlanMessage::kEnd}) {
    write_message(kind, plan_of_two(), bytes);
    EXPECT_EQ(bytes.size(), 1U);
    EXPECT_EQ(read_message(bytes, kLimits, read).value(), kind);
  }
  EXPECT_EQ(read_message({}, kLimits, read).status().code(), StatusCode::kCorrupt);
  bytes = {std::byte{4}};
  EXPECT_EQ(read_message(bytes, kLimits, read).status().code(), StatusCode::kCorrupt);
  bytes = {std::byte{0}, std::byte{3}};
  EXPECT_EQ(read_message(bytes, kLimits, read).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace accord::engine
