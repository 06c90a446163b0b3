#include "c/communicator_options.hpp"

#include "c/structs.hpp"
#include "c/times.hpp"

namespace accord::c {

Result<CommunicatorOptions> options_of(const accord_communicator_options_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_communicator_options_t read, read_struct(given, function));
  CommunicatorOptions options;
  ACCORD_ASSIGN_OR_RETURN(options.timeout, timeout_of(read.timeout_ns, function));
  if (read.name != nullptr) options.name = read.name;
  if (read.transport != nullptr) options.transport = read.transport;
  if (read.select != nullptr) options.select = read.select;
  if (read.hints != nullptr) options.hints = read.hints;
  return options;
}

}  // namespace accord::c
