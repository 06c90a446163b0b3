#include "store/tcp_protocol.hpp"

#include <gmock/gmock.h>

#include <random>

namespace accord::store {
namespace {

using testing::HasSubstr;

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& bytes) {
  return {bytes.data(), bytes.size()};
}

TEST(TcpProtocol, lays_a_request_out_as_documented) {
  const std::string bytes = text_of(
      encode(RequestHeader{.operation = Operation::kSet, .key_bytes = 0x0102, .value_bytes = 0x030405, .number = -2}));
  EXPECT_EQ(bytes, std::string("\x01\0\0\0"
                               "\x02\x01\0\0"
                               "\x05\x04\x03\0"
                               "\0\0\0\0"
                               "\xfe\xff\xff\xff\xff\xff\xff\xff",
                               24));
}

TEST(TcpProtocol, headers_survive_a_round_trip) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 10000; ++i) {
    RequestHeader sent;
    sent.operation = static_cast<Operation>(1 + random() % 4);
    sent.key_bytes = static_cast<std::uint32_t>(1 + random() % kMaxKeyBytes);
    sent.value_bytes =
        sent.operation == Operation::kSet ? static_cast<std::uint32_t>(random() % (kMaxValueBytes + 1)) : 0;
    sent.number = static_cast<std::int64_t>(random());
    const Result<RequestHeader> got = decode_request(text_of(encode(sent)));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(got->operation, sent.operation);
    EXPECT_EQ(got->key_bytes, sent.key_bytes);
    EXPECT_EQ(got->value_bytes, sent.value_bytes);
    EXPECT_EQ(got->number, sent.number);

    const ReplyHeader reply{.code = static_cast<StatusCode>(random() % 14),
                            .text_bytes = static_cast<std::uint32_t>(random() % (kMaxValueBytes + 1)),
                            .number = sent.number};
    const Result<ReplyHeader> read = decode_reply(text_of(encode(reply)));
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->code, reply.code);
    EXPECT_EQ(read->text_bytes, reply.text_bytes);
    EXPECT_EQ(read->number, reply.number);
  }
}

TEST(TcpProtocol, any_bytes_are_a_request_within_bounds_or_rejected) {
  std::mt19937 random(6);
  int accepted = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string bytes(random() % 20 == 0 ? random() % 40 : kRequestHeaderBytes, '\0');
    for (char& byte : bytes) byte = random() % 3 == 0 ? static_cast<char>(random() % 8) : '\0';
    const Result<RequestHeader> header = decode_request(bytes);
    if (!header.ok()) {
      EXPECT_EQ(header.status().code(), StatusCode::kCorrupt);
      continue;
    }
    ++accepted;
    EXPECT_EQ(bytes.size(), kRequestHeaderBytes);
    EXPECT_GE(header->key_bytes, 1u);
    EXPECT_LE(header->key_bytes, 4096u);
    EXPECT_LE(header->value_bytes, header->operation == Operation::kSet ? 8388608u : 0u);
    EXPECT_EQ(text_of(encode(*header)), bytes);
  }
  EXPECT_GT(accepted, 20);
}

TEST(TcpProtocol, any_bytes_are_a_reply_within_bounds_or_rejected) {
  std::mt19937 random(7);
  for (int i = 0; i < 30000; ++i) {
    std::string bytes(random() % 20 == 0 ? random() % 40 : kReplyHeaderBytes, '\0');
    for (char& byte : bytes) byte = random() % 2 == 0 ? static_cast<char>(random()) : '\0';
    const Result<ReplyHeader> header = decode_reply(bytes);
    if (header.ok()) {
      EXPECT_LE(header->text_bytes, 8388608u);
      EXPECT_LE(header->code, StatusCode::kInternal);
    }
  }
}

TEST(TcpProtocol, each_side_recognizes_the_other_by_its_hello) {
  EXPECT_TRUE(check_hello(text_of(encode_hello(Side::kClient)), Side::kClient).ok());
  EXPECT_TRUE(check_hello(text_of(encode_hello(Side::kHost)), Side::kHost).ok());
  EXPECT_EQ(check_hello(text_of(encode_hello(Side::kClient)), Side::kHost).code(), StatusCode::kCorrupt);
  EXPECT_EQ(check_hello("HTTP/1.1 400 Bad", Side::kHost).code(), StatusCode::kCorrupt);
  EXPECT_THAT(check_hello("HTTP/1.1 400 Bad", Side::kHost).message(), HasSubstr("HTTP/1.1"));
  EXPECT_EQ(check_hello("", Side::kHost).code(), StatusCode::kCorrupt);
}

TEST(TcpProtocol, another_version_is_reported_with_both_numbers) {
  std::string hello = text_of(encode_hello(Side::kHost));
  hello[8] = 9;
  const Status status = check_hello(hello, Side::kHost);
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_THAT(status.message(), HasSubstr("version 9 of the store's protocol, this one version 1"));
}

}  // namespace
}  // namespace accord::store
