// Each group does one all_gather of a fixed-size record: a status code, a digest and the start of the message.
#include "engine/runtime/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/text.hpp"

namespace accord::engine {
namespace {

// Ranks that read their shards from different disks, or build files that others find in a cache, can be minutes
// apart. The death of a rank is detected regardless of this timeout.
constexpr Duration kAgreementTimeout = std::chrono::hours(1);

struct Record {
  std::uint8_t code = 0;
  std::array<char, 127> digest{};
  std::array<char, 896> message{};
};
static_assert(sizeof(Record) == 1024);

template <std::size_t size>
void set_text(std::array<char, size>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(size - 1, text.size()));
}

template <std::size_t size>
std::string text_of(const std::array<char, size>& field) {
  return std::string(field.data(), strnlen(field.data(), size));
}

// Returns the ranks whose digest differs from the most frequent one. In a tie, the digest of the lowest rank wins.
std::vector<Rank> differing_ranks(const std::vector<Record>& records) {
  const auto occurs = [&](const Record& record) {
    return std::count_if(records.begin(), records.end(),
                         [&](const Record& other) { return other.digest == record.digest; });
  };
  const auto most_frequent = std::max_element(records.begin(), records.end(),
                                              [&](const Record& a, const Record& b) { return occurs(a) < occurs(b); });
  std::vector<Rank> differing;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].digest != most_frequent->digest) differing.push_back(static_cast<Rank>(rank));
  }
  return differing;
}

Status check_records(const std::string& group, const std::vector<Record>& records, const std::string& failure_phrase) {
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const auto code = static_cast<StatusCode>(records[rank].code);
    if (code == StatusCode::kOk) continue;
    return Status(
        code,
        fmt::format("rank {} of group \"{}\" {}: {}", rank, group, failure_phrase, text_of(records[rank].message)),
        {static_cast<Rank>(rank)});
  }
  const std::vector<Rank> differing = differing_ranks(records);
  if (differing.empty()) return Status();
  return Status(
      StatusCode::kMismatch,
      fmt::format(
          "group \"{}\": {} loaded a different package, or used different options, than the other ranks; load the same "
          "package with the same options on all ranks",
          group, ranks_text(differing)),
      differing);
}

}  // namespace

Status agree(const std::map<std::string, Communicator>& communicators, RankOutcome mine) {
  for (const auto& [group, handle] : communicators) {
    Communicator communicator = handle;
    Record record;
    record.code = static_cast<std::uint8_t>(mine.status.code());
    set_text(record.digest, mine.digest);
    set_text(record.message, mine.status.message());
    std::vector<Record> records(static_cast<std::size_t>(communicator.size()));
    const Status gathered =
        communicator.all_gather(ConstBuffer(&record, sizeof(Record), DType::kUInt8),
                                {records.data(), records.size() * sizeof(Record), DType::kUInt8, {}},
                                {.timeout = kAgreementTimeout, .stream = {}});
    Status outcome = gathered.ok() ? check_records(group, records, mine.failure_phrase)
                                   : gathered.with_context("agreeing with group \"" + group + "\"");
    if (mine.status.ok()) mine.status = std::move(outcome);
  }
  return mine.status;
}

}  // namespace accord::engine
