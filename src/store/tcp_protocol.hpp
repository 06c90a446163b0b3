#pragma once
// The protocol between the TCP store's clients and its host. Pure functions over bytes, without I/O.
//
// A connection begins with a Hello of 16 bytes from the client and one from the host. Then the client sends one
// request at a time and the host answers it; the answer to a get() may take long. Numbers are little-endian.
//
//   Hello    8 bytes magic | u32 version | u32 zero
//   Request  u32 operation | u32 key bytes | u32 value bytes | u32 zero | i64 number | key | value
//   Reply    u32 status code | u32 text bytes | i64 number | text

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "store/entry.hpp"

namespace accord::store {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::size_t kHelloBytes = 16;
inline constexpr std::size_t kRequestHeaderBytes = 24;
inline constexpr std::size_t kReplyHeaderBytes = 16;
inline constexpr std::size_t kMaxRequestBytes = kRequestHeaderBytes + kMaxKeyBytes + kMaxValueBytes;

/// Sender of a hello. The two sides differ, so that a client notices a connection to itself (a port connected to
/// itself).
enum class Side : std::uint8_t { kClient, kHost };

enum class Operation : std::uint32_t { kSet = 1, kGet = 2, kAdd = 3, kErase = 4 };

struct RequestHeader {
  Operation operation = Operation::kGet;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;  ///< for kSet, else 0
  std::int64_t number = 0;        ///< kAdd: the number to add; kGet: nanoseconds to wait; else 0
};

struct ReplyHeader {
  StatusCode code = StatusCode::kOk;
  std::uint32_t text_bytes = 0;  ///< value of a kGet, or message of a failure
  std::int64_t number = 0;       ///< sum of a kAdd
};

std::array<char, kHelloBytes> encode_hello(Side side);
/// Fails with kCorrupt if `bytes` are not the hello of `side`, with kMismatch if it speaks another version.
Status check_hello(std::string_view bytes, Side side);

std::array<char, kRequestHeaderBytes> encode(const RequestHeader& header);
/// Fails with kCorrupt unless it is a valid client request: known operation, sizes within bounds.
Result<RequestHeader> decode_request(std::string_view bytes);

std::array<char, kReplyHeaderBytes> encode(const ReplyHeader& header);
Result<ReplyHeader> decode_reply(std::string_view bytes);

}  // namespace accord::store
