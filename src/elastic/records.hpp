#pragma once
// The texts that the processes of an elastic group write into its store.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::elastic {

/// One process's entry.
struct MemberRecord {
  bool has_left = false;
  std::int64_t after = 0;  ///< the newest round that it knew; it waits for a later one
  std::string handle;      ///< by which it can be in that round
  std::string life;        ///< LifeLine::address()
};

std::string to_text(const MemberRecord& record);
/// kCorrupt names `where` and the text.
Result<MemberRecord> parse_member(std::string_view text, std::string_view where);

/// One group that was formed, or was to be.
struct Round {
  std::int64_t number = 0;  ///< from 1; 0: none yet
  std::string uuid;
  std::vector<std::int64_t> members;  ///< ids, in rank order
  std::vector<std::string> handles;   ///< theirs
  std::vector<std::int64_t> others;   ///< ids of further processes that may live
  std::int64_t ids = 0;               ///< ids that had been given; larger ones are new
};

std::string to_text(const Round& round);
/// kCorrupt names `where` and what is wrong.
Result<Round> parse_round(std::string_view text, std::string_view where);

}  // namespace accord::elastic
