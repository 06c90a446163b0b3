// Each option is the caller's, else its parent's, else the environment's; a table of plans adds to the one before it.
#include "comm/group_options.hpp"

#include <utility>

#include "base/config.hpp"
#include "comm/select_text.hpp"

namespace accord::comm {
namespace {

std::string both(std::string first, const std::string& second) {
  if (!first.empty() && !second.empty()) first += ";";
  return first + second;
}

}  // namespace

Result<GroupOptions> resolve(CommunicatorOptions options) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_ASSIGN_OR_RETURN(const SelectText select, read_select(config()->select));
  const GroupOptions environment{
      .timeout = config()->timeout, .transport = config()->transport, .select = select.table, .hints = config()->hints};
  return inherit(environment, std::move(options));
}

Result<GroupOptions> inherit(const GroupOptions& parent, CommunicatorOptions given) {
  ACCORD_ASSIGN_OR_RETURN(const SelectText select, read_select(given.select));
  ACCORD_ASSIGN_OR_RETURN(const GroupHints hints, parse_hints(given.hints, parent.hints));
  return GroupOptions{.name = std::move(given.name),
                      .timeout = given.timeout.value_or(parent.timeout),
                      .transport = std::move(given.transport).value_or(parent.transport),
                      .select = both(parent.select, select.table),
                      .hints = hints};
}

}  // namespace accord::comm
