// PyTorch's store protocol byte by byte, as a client sends it. tests/python/jobs/test_launcher_stores.py uses
// PyTorch's own client.
#include "cli/launch/torch_store_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace accord::cli {
namespace {

template <typename Number>
std::string number(Number value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(const std::string& value) { return number(std::uint64_t{value.size()}) + value; }

// Requests, by their numbers in the protocol.
const std::string kHello = number(std::uint8_t{0}) + number(std::uint32_t{0x3C85F7CE});
std::string set(const std::string& key, const std::string& value) { return "\1" + text(key) + text(value); }
std::string get(const std::string& key) { return "\3" + text(key); }
std::string add(const std::string& key, std::int64_t amount) { return "\4" + text(key) + number(amount); }
std::string wait_for(const std::string& one, const std::string& other) {
  return "\6" + number(std::uint64_t{2}) + text(one) + text(other);
}
const std::string kCancelWait = "\14";
const std::string kStopped(1, '\0'), kCanceled = "\1";

TEST(TorchStoreTable, a_request_may_arrive_in_pieces_or_with_others) {
  TorchStoreTable table;
  for (const char byte : kHello + set("key", "value")) ASSERT_TRUE(table.receive(1, {&byte, 1}));
  ASSERT_TRUE(table.receive(1, get("key") + get("absent") + add("n", 3) + add("n", -5) + get("n")));
  EXPECT_EQ(table.pop_answers()[1],
            text("value") + text("") + number(std::int64_t{3}) + number(std::int64_t{-2}) + text("-2"));
}

TEST(TorchStoreTable, a_wait_for_two_keys_is_answered_once_when_both_exist) {
  TorchStoreTable table;
  ASSERT_TRUE(table.receive(1, kHello + wait_for("a", "b")));
  ASSERT_TRUE(table.receive(2, kHello + set("a", "") + set("a", "")));
  EXPECT_TRUE(table.pop_answers().empty());
  ASSERT_TRUE(table.receive(2, add("b", 1)));
  EXPECT_EQ(table.pop_answers(),
            (std::map<TorchStoreTable::Client, std::string>{{1, kStopped}, {2, number(std::int64_t{1})}}));
}

TEST(TorchStoreTable, a_client_that_gave_up_or_left_gets_no_later_answer) {
  TorchStoreTable table;
  for (const TorchStoreTable::Client client : {1, 2}) ASSERT_TRUE(table.receive(client, kHello + wait_for("a", "b")));
  ASSERT_TRUE(table.receive(1, kCancelWait));
  EXPECT_EQ(table.pop_answers()[1], kCanceled);
  table.drop(2);
  ASSERT_TRUE(table.receive(3, kHello + set("a", "") + set("b", "")));
  EXPECT_TRUE(table.pop_answers().empty());
}

TEST(TorchStoreTable, strangers_and_invalid_requests_are_rejected) {
  const std::string too_long = "\1" + number(std::uint64_t{1} << 40);
  const std::string too_many = "\6" + number(std::uint64_t{1} << 40);
  for (const std::string& bytes : {std::string("GET / HTTP/1.1"), set("key", "no hello"), kHello + too_long,
                                   kHello + too_many, kHello + "\x7f", kHello + set("word", "x") + add("word", 1)}) {
    TorchStoreTable table;
    EXPECT_FALSE(table.receive(1, bytes)) << testing::PrintToString(bytes);
  }
}

TEST(TorchStoreTable, random_bytes_do_not_disturb_other_clients) {
  std::mt19937 random(7);
  TorchStoreTable table;
  ASSERT_TRUE(table.receive(1, kHello + set("key", "value")));
  for (TorchStoreTable::Client client = 2; client < 2000; ++client) {
    std::string bytes = kHello;
    for (int i = 0; i < 40; ++i) bytes += static_cast<char>(random() % (i % 3 == 0 ? 20 : 3));
    (void)table.receive(client, bytes);
    table.drop(client);
  }
  table.pop_answers();
  ASSERT_TRUE(table.receive(1, get("key")));
  EXPECT_EQ(table.pop_answers()[1], text("value"));
}

}  // namespace
}  // namespace accord::cli
