// libFuzzer target for the plans and messages that rank 0 sends. An input is a message without its plan's hash. The
// right hash is added here, so that the input gets past that check. A message that can be read fits the model, and is
// written again as it was.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/hash.hpp"
#include "engine/serving/plan_message.hpp"

namespace {

using namespace accord::engine;

constexpr PlanLimits kLimits = {.blocks = 40,
                                .block_tokens = 4,
                                .max_context = 100,
                                .vocabulary = 1000,
                                .max_sequences = 8,
                                .max_rows = 64,
                                .max_source = 20};

void require(bool held) {
  if (!held) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto* first = reinterpret_cast<const std::byte*>(data);
  StepPlan plan;
  (void)read_message({first, size}, kLimits, plan).ok();
  std::vector<std::byte> bytes(first, first + size - 1);
  const std::uint64_t hash = accord::xxh3(bytes);
  bytes.resize(bytes.size() + sizeof(hash) + 1);
  std::memcpy(&bytes[size - 1], &hash, sizeof(hash));
  bytes.back() = first[size - 1];
  const auto kind = read_message(bytes, kLimits, plan);
  if (!kind.ok()) return 0;
  require(*kind == PlanMessage::kStep && check_plan(plan, kLimits).ok());
  std::vector<std::byte> again;
  write_message(*kind, plan, again);
  require(again == bytes);
  return 0;
}
