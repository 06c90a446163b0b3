#include "comm/formation/handle.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "topology/topology.hpp"
#include "transport/tcp/call.hpp"
#include "transport/tcp/host_addresses.hpp"

namespace accord::comm {
namespace {

constexpr std::string_view kFormat = "accord1";
constexpr std::size_t kMaxAddresses = 8;
constexpr std::size_t kHostDigits = 16;

bool is_hexadecimal(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

// The process number has ten digits, so that alphabetical order is that of the numbers.
std::string to_text(const Handle& handle) {
  return fmt::format("{}/{}/{:010}/{}/{}/{}", kFormat, handle.host, handle.process, handle.key, handle.port,
                     fmt::join(handle.addresses, ","));
}

Result<Handle> parse_handle(std::string_view text) {
  const Status wrong(StatusCode::kInvalidArgument,
                     fmt::format("{} is not a handle of an accord communicator", quoted_text(text)));
  const std::vector<std::string_view> fields = split_text(text, '/');
  if (fields.size() != 6 || fields[0] != kFormat || !is_hexadecimal(fields[1], kHostDigits) ||
      !is_hexadecimal(fields[3], transport::tcp::kCookieBytes))
    return wrong;
  const Result<std::int64_t> process = parse_integer(fields[2], "process");
  const Result<std::int64_t> port = parse_integer(fields[4], "port");
  if (!process.ok() || *process < 1 || *process > INT32_MAX || !port.ok() || *port < 1 || *port > UINT16_MAX)
    return wrong;
  Handle handle{.host = std::string(fields[1]),
                .process = static_cast<int>(*process),
                .key = std::string(fields[3]),
                .port = static_cast<std::uint16_t>(*port),
                .addresses = {}};
  for (const std::string_view address : split_text(fields[5], ',')) {
    handle.addresses.emplace_back(address);
    if (!transport::tcp::socket_address(handle.addresses.back(), handle.port).ok()) return wrong;
  }
  if (handle.addresses.empty() || handle.addresses.size() > kMaxAddresses || to_text(handle) != text) return wrong;
  return handle;
}

std::string describe(const Handle& handle) { return fmt::format("process {} on host {}", handle.process, handle.host); }

Result<HandleListener> HandleListener::open() {
  ACCORD_ASSIGN_OR_RETURN(const std::string host, topology::this_host());
  ACCORD_ASSIGN_OR_RETURN(std::string key, transport::tcp::random_cookie());
  ACCORD_ASSIGN_OR_RETURN(std::vector<std::string> addresses, transport::tcp::host_addresses());
  ACCORD_ASSIGN_OR_RETURN(transport::tcp::Listener listener, transport::tcp::listen_for_calls());
  return HandleListener{.handle = {.host = hex64(xxh3(std::as_bytes(std::span(host)))),
                                   .process = ::getpid(),
                                   .key = std::move(key),
                                   .port = listener.port,
                                   .addresses = std::move(addresses)},
                        .socket = std::move(listener.socket)};
}

}  // namespace accord::comm
