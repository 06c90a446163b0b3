// Fields are written and read byte by byte at fixed offsets. Every value read is checked against its bounds before it
// determines an allocation.
#include "store/tcp_protocol.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace accord::store {
namespace {

constexpr std::string_view kClientMagic = "ACCSTOQ\n";
constexpr std::string_view kHostMagic = "ACCSTOR\n";

template <typename Integer>
void put(char* at, Integer value) {
  const auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(Integer); ++i) at[i] = static_cast<char>(bits >> (8 * i));
}

template <typename Integer>
Integer read(std::string_view bytes, std::size_t at) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return static_cast<Integer>(bits);
}

std::string_view magic_of(Side side) { return side == Side::kClient ? kClientMagic : kHostMagic; }

Status corrupt(std::string message) { return Status(StatusCode::kCorrupt, std::move(message)); }

}  // namespace

std::array<char, kHelloBytes> encode_hello(Side side) {
  std::array<char, kHelloBytes> bytes = {};
  magic_of(side).copy(bytes.data(), magic_of(side).size());
  put(bytes.data() + 8, kProtocolVersion);
  return bytes;
}

Status check_hello(std::string_view bytes, Side side) {
  if (bytes.size() != kHelloBytes || !bytes.starts_with(magic_of(side))) {
    return corrupt(fmt::format("it does not use accord's store protocol: it begins with {}", quoted_text(bytes)));
  }
  const auto version = read<std::uint32_t>(bytes, 8);
  if (version == kProtocolVersion) return Status();
  return Status(StatusCode::kMismatch,
                fmt::format("the other side speaks version {} of the store's protocol, this one version {}; "
                            "run the same accord on all ranks",
                            version, kProtocolVersion));
}

std::array<char, kRequestHeaderBytes> encode(const RequestHeader& header) {
  std::array<char, kRequestHeaderBytes> bytes = {};
  put(bytes.data(), static_cast<std::uint32_t>(header.operation));
  put(bytes.data() + 4, header.key_bytes);
  put(bytes.data() + 8, header.value_bytes);
  put(bytes.data() + 16, header.number);
  return bytes;
}

Result<RequestHeader> decode_request(std::string_view bytes) {
  if (bytes.size() != kRequestHeaderBytes) return corrupt(fmt::format("a request header of {} bytes", bytes.size()));
  RequestHeader header;
  const auto operation = read<std::uint32_t>(bytes, 0);
  header.operation = static_cast<Operation>(operation);
  header.key_bytes = read<std::uint32_t>(bytes, 4);
  header.value_bytes = read<std::uint32_t>(bytes, 8);
  header.number = read<std::int64_t>(bytes, 16);
  if (operation < 1 || operation > 4) return corrupt(fmt::format("unknown operation {}", operation));
  if (read<std::uint32_t>(bytes, 12) != 0) return corrupt("a reserved field is not zero");
  if (header.key_bytes < 1 || header.key_bytes > kMaxKeyBytes) {
    return corrupt(fmt::format("a key of {} bytes", header.key_bytes));
  }
  const std::size_t max = header.operation == Operation::kSet ? kMaxValueBytes : 0;
  if (header.value_bytes > max) return corrupt(fmt::format("a value of {} bytes", header.value_bytes));
  return header;
}

std::array<char, kReplyHeaderBytes> encode(const ReplyHeader& header) {
  std::array<char, kReplyHeaderBytes> bytes = {};
  put(bytes.data(), static_cast<std::uint32_t>(header.code));
  put(bytes.data() + 4, header.text_bytes);
  put(bytes.data() + 8, header.number);
  return bytes;
}

Result<ReplyHeader> decode_reply(std::string_view bytes) {
  if (bytes.size() != kReplyHeaderBytes) return corrupt(fmt::format("a reply header of {} bytes", bytes.size()));
  ReplyHeader header;
  const auto code = read<std::uint32_t>(bytes, 0);
  header.code = static_cast<StatusCode>(code);
  header.text_bytes = read<std::uint32_t>(bytes, 4);
  header.number = read<std::int64_t>(bytes, 8);
  if (code > static_cast<std::uint32_t>(StatusCode::kInternal)) return corrupt(fmt::format("unknown status {}", code));
  if (header.text_bytes > kMaxValueBytes) return corrupt(fmt::format("a reply of {} bytes", header.text_bytes));
  return header;
}

}  // namespace accord::store
