// Every rank compares the records with rank 0's, so all ranks reach the same verdict. The text of an error is sent in
// a second all_gather, which ranks enter only after they have seen that there is an error.
#include "expert/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/clock.hpp"

namespace accord::expert {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"create",  "add_window",        "prepare",          "dispatch",
                                                    "combine", "dispatch_backward", "combine_backward", "decline"};
constexpr std::size_t kTextBytes = 512;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

bool is_alike(const CallRecord& a, const CallRecord& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.result_dtype == b.result_dtype && a.scales == b.scales &&
         a.weights == b.weights && a.handle == b.handle && a.generation == b.generation;
}

}  // namespace

std::string text_of(const CallRecord& record) {
  std::string text(to_string(record.operation));
  if (record.operation == Operation::kCreate) return text;
  if (record.operation == Operation::kAddWindow)
    return text + fmt::format(" of window {} of group {:08x}", record.handle, record.generation);
  text += fmt::format(" of handle {}, prepared {} times", record.handle, record.generation);
  if (record.operation == Operation::kPrepare) return text;
  const auto name = [](std::uint8_t dtype) { return to_string(static_cast<DType>(dtype)); };
  text += fmt::format(", {} to {}", name(record.dtype), name(record.result_dtype));
  if (record.scales == Given::kYes) text += ", with scales";
  if (record.weights == Given::kYes) text += ", with weights";
  if (record.weights == Given::kFloat64) text += ", with weights in float64";
  return text;
}

std::string_view to_string(Operation operation) { return kNames[static_cast<std::size_t>(operation)]; }

Rendezvous::Rendezvous(Communicator communicator)
    : communicator_(std::move(communicator)),
      all_(static_cast<std::size_t>(communicator_.size())),
      clocks_(all_.size()),
      waits_(all_.size()) {}

Status Rendezvous::meet(CallRecord record, const Status& mine) {
  record.error = static_cast<std::uint8_t>(mine.code());
  record.clock = now();
  const std::string_view name = to_string(record.operation);
  ACCORD_RETURN_IF_ERROR(communicator_
                             .all_gather({&record, sizeof record, DType::kUInt8},
                                         {all_.data(), all_.size() * sizeof record, DType::kUInt8, {}})
                             .with_context(name));
  for (std::size_t r = 0; r < all_.size(); ++r) clocks_[r] = all_[r].clock;
  note_waits(record.clock);
  if (std::any_of(all_.begin(), all_.end(), [](const CallRecord& it) { return it.error != 0; }))
    return share_error(name, mine);
  return compare(record);
}

Status Rendezvous::share_error(std::string_view operation, const Status& mine) {
  std::string text = mine.message();
  text.resize(kTextBytes);
  text.back() = '\0';
  std::vector<char> texts(kTextBytes * all_.size());
  ACCORD_RETURN_IF_ERROR(
      communicator_
          .all_gather({text.data(), kTextBytes, DType::kUInt8}, {texts.data(), texts.size(), DType::kUInt8, {}})
          .with_context(operation));
  const auto first = std::find_if(all_.begin(), all_.end(), [](const CallRecord& it) { return it.error != 0; });
  const auto rank = static_cast<Rank>(first - all_.begin());
  return {
      static_cast<StatusCode>(first->error),
      fmt::format("{} on group \"{}\": rank {}: {}", operation, communicator_.name(), rank, &texts[rank * kTextBytes]),
      {rank}};
}

Status Rendezvous::compare(const CallRecord& mine) {
  // A rank that has no elements of a buffer adopts the others' setting.
  const auto resolve = [&](Given CallRecord::*given) {
    const auto given_by =
        std::find_if(all_.begin(), all_.end(), [&](const CallRecord& it) { return it.*given != Given::kAny; });
    const Given common = given_by == all_.end() ? Given::kNo : *given_by.*given;
    for (CallRecord& record : all_)
      if (record.*given == Given::kAny) record.*given = common;
    return common;
  };
  scales_ = resolve(&CallRecord::scales);
  weights_ = resolve(&CallRecord::weights);
  const auto other =
      std::find_if(all_.begin(), all_.end(), [&](const CallRecord& it) { return !is_alike(it, all_.front()); });
  if (other == all_.end()) return {};
  const auto rank = static_cast<Rank>(other - all_.begin());
  return {StatusCode::kMismatch,
          fmt::format("{} on group \"{}\": rank {} called {}, rank 0 called {}", to_string(mine.operation),
                      communicator_.name(), rank, text_of(*other), text_of(all_.front())),
          {rank}};
}

Status Rendezvous::finish() {
  const std::int64_t mine = now();
  ACCORD_RETURN_IF_ERROR(
      communicator_.all_gather({&mine, 1, DType::kInt64}, {clocks_.data(), clocks_.size(), DType::kInt64, {}}));
  note_waits(mine);
  return {};
}

void Rendezvous::note_waits(std::int64_t mine) {
  for (const Rank r : same_clock_)
    waits_[r] += 1e-9 * static_cast<double>(std::max<std::int64_t>(0, clocks_[r] - mine));
}

}  // namespace accord::expert
