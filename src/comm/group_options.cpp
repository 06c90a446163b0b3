// Each option is the caller's, else its parent's, else the environment's. A selection table is appended to the one
// before it.
#include "comm/group_options.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/config.hpp"
#include "comm/select_text.hpp"

namespace accord::comm {
namespace {

std::string both(std::string first, const std::string& second) {
  if (!first.empty() && !second.empty()) first += ";";
  return first + second;
}

std::string creating(const CommunicatorOptions& options) { return fmt::format("creating group \"{}\"", options.name); }

}  // namespace

std::string device_terms(const GroupHints& hints) {
  std::string terms;
  const auto add = [&](std::string_view name, const auto& given) {
    if (given) terms += fmt::format(", {}={}", name, *given);
  };
  add("cga_cluster_size", hints.cga_cluster_size);
  add("min_ctas", hints.min_ctas);
  add("max_ctas", hints.max_ctas);
  add("net_name", hints.net_name);
  return terms;
}

Result<GroupOptions> resolve(CommunicatorOptions options) {
  ACCORD_RETURN_IF_ERROR(config().status());
  const Result<SelectText> select = read_select(config()->select);
  if (!select.ok()) return select.status().with_context(creating(options));
  const GroupOptions environment{.timeout = config()->timeout,
                                 .transport = config()->transport,
                                 .select = select->table,
                                 .hints = config()->hints};
  return inherit(environment, std::move(options));
}

Result<GroupOptions> inherit(const GroupOptions& parent, CommunicatorOptions given) {
  const Result<SelectText> select = read_select(given.select);
  if (!select.ok()) return select.status().with_context(creating(given));
  const Result<GroupHints> hints = parse_hints(given.hints, parent.hints);
  if (!hints.ok()) return hints.status().with_context(creating(given));
  return GroupOptions{.name = std::move(given.name),
                      .timeout = given.timeout.value_or(parent.timeout),
                      .transport = std::move(given.transport).value_or(parent.transport),
                      .select = both(parent.select, select->table),
                      .hints = *hints};
}

}  // namespace accord::comm
