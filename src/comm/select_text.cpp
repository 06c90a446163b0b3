// A table that was tuned on another processor is refused, since its use would go unnoticed. The numbers of cores and
// ranks that it was measured with are conditions of its rules.
#include "comm/select_text.hpp"

#include <fmt/format.h>

#include "base/fd.hpp"
#include "plan/tuning.hpp"
#include "topology/processor.hpp"

namespace accord::comm {

Result<SelectText> read_select(std::string_view select) {
  if (!select.starts_with('@')) return SelectText{.table = std::string(select)};
  const std::size_t end = std::min(select.find(';'), select.size());
  const std::string path(select.substr(1, end - 1));
  if (path.empty())
    return Status(StatusCode::kInvalidArgument,
                  "selection table: no file is named after \"@\"; write @FILE or @FILE;TABLE");
  const Result<std::string> text = read_file(path, std::size_t{1} << 20);
  if (!text.ok()) return text.status().with_context("the tuner's table");
  const std::string where = fmt::format("the tuner's table {}", path);
  const Result<plan::TuningFacts> facts = plan::parse_tuning(*text);
  if (!facts.ok()) return facts.status().with_context(where);
  const std::string here = topology::processor_name();
  if (facts->processor != here && facts->processor != plan::kSimulatedProcessor)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} was measured on \"{}\", and this is \"{}\": run accord tune here, or change its line "
                              "\"# processor:\" to use it anyway",
                              where, facts->processor, here));
  SelectText read{.table = *text + "\n", .file = path, .file_bytes = text->size()};
  if (end < select.size()) read.table += select.substr(end);
  return read;
}

}  // namespace accord::comm
