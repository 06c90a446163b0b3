#include "exec/request_record.hpp"

#include <fmt/format.h>

#include "plan/collective.hpp"

namespace accord::exec {

std::string name_of(const RequestRecord& record) {
  return fmt::format("{}{}", accord::to_string(record.collective), has_equal_parts(record.phase) ? "" : "_v");
}

std::string to_string(const RequestRecord& record) { return to_string(record, name_of(record)); }

std::string to_string(const RequestRecord& record, std::string_view name) {
  const plan::CollectiveTraits& traits = plan::traits_of(record.collective);
  std::string text(name);
  if (traits.input.holders == plan::Holders::kNobody) return text;
  switch (record.phase) {
    case Phase::kEqualParts:
    case Phase::kRegistered: text += fmt::format(" of {} x", record.count); break;
    case Phase::kCountsFirst: text += " of"; break;
    case Phase::kUnequalParts: text += fmt::format(" of up to {} x", record.count); break;
  }
  text += fmt::format(" {}", accord::to_string(record.dtype));
  if (traits.reduces) text += fmt::format(" ({})", accord::to_string(record.op));
  if (record.collective == Collective::kSendRecv && record.root != 0) text += fmt::format(", tag {}", record.root);
  if (traits.rooted) {
    const bool from_root = traits.output.holders == plan::Holders::kAll;
    text += fmt::format(" {} rank {}", from_root ? "from" : "to", record.root);
  }
  return text;
}

}  // namespace accord::exec
