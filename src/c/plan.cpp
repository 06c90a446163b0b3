// User-defined plans for C callers.
#include "accord/plan.hpp"

#include <fmt/format.h>

#include <string>

#include "accord/accord.h"
#include "base/fd.hpp"
#include "c/answer.hpp"
#include "c/structs.hpp"

using accord::PlanOptions;
using accord::Result;
using accord::Status;
using accord::c::answer;

namespace {

Result<PlanOptions> options_of(const accord_plan_options_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_plan_options_t read, accord::c::read_struct(given, function));
  PlanOptions options;
  if (read.name != nullptr) options.name = read.name;
  if (read.bytes != nullptr) options.bytes = read.bytes;
  return options;
}

}  // namespace

extern "C" accord_status_t accord_register_plan(const char* json, const accord_plan_options_t* options) {
  return answer(__func__, {{"json", json}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const PlanOptions read, options_of(options, function));
    return accord::register_plan(json, read);
  });
}

extern "C" accord_status_t accord_register_plan_file(const char* path, const accord_plan_options_t* options) {
  return answer(__func__, {{"path", path}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const PlanOptions read, options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(const std::string json, accord::read_file(path));
    return accord::register_plan(json, read).with_context(path);
  });
}
