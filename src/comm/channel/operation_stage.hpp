#pragma once
// How far a channel's running operation is.

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace accord::comm {

enum class Stage : std::uint8_t {
  kCounts,    ///< ranks gather the counts of unequal parts
  kExpected,  ///< a receive that began as if its message were next; the sender's record may still say otherwise
  kMessage,   ///< a receive that waits until its message is next
  kData,      ///< the data moves
  kRefused,   ///< the operation must end with a failure, and the group has been notified of it
};

/// An operation begins in any stage but kRefused, and ends in kExpected, kMessage (with a message that was kept), kData
/// or kRefused. In between it moves from stage to stage as follows.
struct StageMove {
  Stage from;
  Stage to;
  const char* when;
};
inline constexpr StageMove kStageMoves[] = {
    {Stage::kCounts, Stage::kData, "the counts of all ranks have arrived"},
    {Stage::kCounts, Stage::kRefused, "the counts do not fit, or there is no plan for them"},
    {Stage::kExpected, Stage::kData, "the sender's record shows that the expected message is next"},
    {Stage::kExpected, Stage::kMessage, "the sender's record shows that another message is next"},
    {Stage::kExpected, Stage::kRefused,
     "a peer has failed, or a kept message does not fit the queued receive with its tag"},
    {Stage::kMessage, Stage::kData, "the sender's record shows that the message is next"},
    {Stage::kMessage, Stage::kRefused,
     "a message does not fit its receive, or there is no plan for it, or no memory to keep it"},
    {Stage::kData, Stage::kRefused,
     "a peer has failed, or a kept message does not fit the queued receive with its tag"},
};
constexpr bool is_stage_move(Stage from, Stage to) {
  return std::any_of(std::begin(kStageMoves), std::end(kStageMoves),
                     [&](const StageMove& move) { return move.from == from && move.to == to; });
}

}  // namespace accord::comm
