// The guarantees of every store, checked on each. An implementation joins with one line in kImplementations.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "accord/store.hpp"
#include "base/clock.hpp"
#include "conformance/store/directory.hpp"

namespace accord {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Duration kLong = 60s;
constexpr Duration kShort = 50ms;

/// Returns another client of the same store at each call.
using Clients = std::function<std::shared_ptr<Store>()>;

Clients same(std::shared_ptr<Store> store) {
  return [store] { return store; };
}

Clients files() {
  auto directory = std::make_shared<testing_support::TemporaryDirectory>();
  return [directory] { return make_file_store(directory->path()).value(); };
}

Clients tcp() {
  std::shared_ptr<Store> host = make_tcp_store(StoreRole::kHost, "127.0.0.1", 0, kLong).value();
  const int port = std::stoi(host->describe().substr(host->describe().rfind(':') + 1));
  return [host, port] { return make_tcp_store(StoreRole::kClient, "127.0.0.1", port, kLong).value(); };
}

Clients prefixed(Clients below) {
  return [below] { return make_prefix_store(below(), "job/7"); };
}

struct Implementation {
  const char* name;
  Clients (*make)();
};

const Implementation kImplementations[] = {
    {"memory", [] { return same(make_memory_store()); }},
    {"file", files},
    {"tcp", tcp},
    {"prefix_over_tcp", [] { return prefixed(tcp()); }},
};

class StoreConformance : public testing::TestWithParam<Implementation> {
 protected:
  std::shared_ptr<Store> client() { return clients_(); }

  /// Runs `body(i)` in `count` threads and waits for them.
  static void in_threads(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  Clients clients_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance, testing::ValuesIn(kImplementations),
                         [](const auto& tested) { return tested.param.name; });

#define EXPECT_OK(expression)                                           \
  do {                                                                  \
    const Status expect_ok_status = (expression);                       \
    EXPECT_TRUE(expect_ok_status.ok()) << expect_ok_status.to_string(); \
  } while (false)

TEST_P(StoreConformance, one_client_gets_the_value_that_another_set) {
  const auto writer = client();
  const auto reader = client();
  EXPECT_OK(writer->set("greeting", "hello"));
  EXPECT_EQ(*reader->get("greeting", kLong), "hello");
  EXPECT_OK(reader->set("greeting", "good bye"));
  EXPECT_EQ(*writer->get("greeting", kLong), "good bye");
}

TEST_P(StoreConformance, values_are_any_bytes_of_any_length_up_to_the_limit) {
  const auto store = client();
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  std::string largest(std::size_t{8} << 20, '\0');
  for (std::size_t i = 0; i < largest.size(); ++i) largest[i] = static_cast<char>(i * 31 + i / 1021);
  for (const std::string& value : {std::string(), every_byte, largest}) {
    EXPECT_OK(store->set("value", value));
    const Result<std::string> got = client()->get("value", kLong);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_TRUE(*got == value) << value.size();
  }
}

TEST_P(StoreConformance, keys_are_any_bytes_and_are_never_mixed_up) {
  const std::string long_key(4000, 'k');
  const std::vector<std::string> keys = {
      "a/b",   "a_b",      "a%2Fb", "a b",  "A/B",      "..",           ".",
      ".lock", ".writing", "/",     "/etc", "\xc3\xa9", "\n",           std::string("\0", 1),
      "~",     "%",        "-",     "0",    long_key,   long_key + "1", long_key + "2"};
  const auto store = client();
  for (const std::string& key : keys) EXPECT_OK(store->set(key, "value of " + key));
  for (const std::string& key : keys) EXPECT_EQ(*client()->get(key, Duration::zero()), "value of " + key);
}

TEST_P(StoreConformance, empty_and_oversized_keys_and_values_are_rejected_with_their_sizes) {
  const auto store = client();
  const std::string too_long(4097, 'k');
  for (const std::string& key : {std::string(), too_long}) {
    EXPECT_EQ(store->set(key, "x").code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->get(key, kLong).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->add(key, 1).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->erase(key).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(store->set(too_long, "x").message(), HasSubstr("4097 bytes"));
  const Status too_large = store->set("large", std::string((std::size_t{8} << 20) + 1, 'x'));
  EXPECT_EQ(too_large.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(too_large.message(), HasSubstr("8388609 bytes"));
  EXPECT_OK(store->set("still", "works"));
}

TEST_P(StoreConformance, get_waits_until_the_key_is_set) {
  const auto reader = client();
  std::atomic<bool> got{false};
  std::thread waiting([&] {
    EXPECT_EQ(*reader->get("late", kLong), "here");
    got = true;
  });
  EXPECT_EQ(client()->get("never", kShort).status().code(), StatusCode::kTimeout);
  EXPECT_FALSE(got);
  EXPECT_OK(client()->set("late", "here"));
  waiting.join();
}

TEST_P(StoreConformance, get_waits_forever_on_request) {
  const auto reader = client();
  std::thread waiting([&] { EXPECT_EQ(*reader->get("late", Duration::max()), "here"); });
  EXPECT_OK(client()->set("late", "here"));
  waiting.join();
}

TEST_P(StoreConformance, get_times_out_and_names_the_key) {
  const auto store = client();
  const auto begin = Clock::now();
  const Status status = store->get("absent/key", 200ms).status();
  const auto waited = Clock::now() - begin;
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("absent/key"));
  EXPECT_THAT(status.message(), HasSubstr("200 ms"));
  EXPECT_GE(waited, 200ms);
  EXPECT_LT(waited, 5s);
  EXPECT_OK(store->set("absent/key", "but now"));
  EXPECT_EQ(*store->get("absent/key", kLong), "but now");
}

TEST_P(StoreConformance, get_with_a_timeout_of_zero_checks_once) {
  const auto store = client();
  for (const Duration timeout : {Duration::zero(), Duration(-1s), Duration::min()}) {
    EXPECT_EQ(store->get("absent", timeout).status().code(), StatusCode::kTimeout);
  }
  EXPECT_OK(store->set("present", "yes"));
  EXPECT_EQ(*client()->get("present", Duration::zero()), "yes");
  EXPECT_EQ(*client()->get("present", -1s), "yes");
}

TEST_P(StoreConformance, add_counts_from_zero_and_stores_a_decimal_number) {
  const auto store = client();
  EXPECT_EQ(*store->add("count", 5), 5);
  EXPECT_EQ(*client()->add("count", -7), -2);
  EXPECT_EQ(*store->get("count", kLong), "-2");
  EXPECT_OK(store->set("count", "40"));
  EXPECT_EQ(*store->add("count", 2), 42);
  EXPECT_EQ(*store->add("count", 0), 42);
}

TEST_P(StoreConformance, add_wakes_clients_that_wait_for_the_key) {
  const auto reader = client();
  std::thread waiting([&] { EXPECT_EQ(*reader->get("count", kLong), "1"); });
  EXPECT_EQ(*client()->add("count", 1), 1);
  waiting.join();
}

TEST_P(StoreConformance, add_to_a_value_that_is_not_a_number_is_rejected_and_changes_nothing) {
  const auto store = client();
  for (const std::string value : {"", "seven", "1x", " 1", "1.5", "99999999999999999999"}) {
    EXPECT_OK(store->set("text", value));
    const Status status = store->add("text", 1).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(status.message(), HasSubstr("text\""));
    EXPECT_EQ(*store->get("text", kLong), value);
  }
}

TEST_P(StoreConformance, add_beyond_64_bits_is_rejected_and_changes_nothing) {
  const auto store = client();
  EXPECT_OK(store->set("large", "9223372036854775806"));
  EXPECT_EQ(*store->add("large", 1), 9223372036854775807);
  EXPECT_EQ(store->add("large", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*store->get("large", kLong), "9223372036854775807");
}

TEST_P(StoreConformance, erase_removes_a_key_and_accepts_an_absent_one) {
  const auto store = client();
  EXPECT_OK(store->set("key", "value"));
  EXPECT_OK(client()->erase("key"));
  EXPECT_EQ(store->get("key", Duration::zero()).status().code(), StatusCode::kTimeout);
  EXPECT_OK(store->erase("key"));
  EXPECT_EQ(*store->add("key", 1), 1);
}

TEST_P(StoreConformance, one_set_wakes_all_clients_that_wait_for_the_key) {
  std::vector<std::shared_ptr<Store>> readers;
  for (int i = 0; i < 8; ++i) readers.push_back(client());
  const auto writer = client();
  const std::string value(1 << 20, 'v');
  in_threads(9, [&](int i) {
    if (i == 8) {
      EXPECT_OK(writer->set("all", value));
    } else {
      const Result<std::string> got = readers[static_cast<std::size_t>(i)]->get("all", kLong);
      EXPECT_TRUE(got.ok() && *got == value);
    }
  });
}

TEST_P(StoreConformance, threads_of_one_client_wait_concurrently) {
  const auto store = client();
  // Each thread waits for the next one's key, and the last one for nothing. A lock held while waiting would hang
  // here.
  in_threads(12, [&](int i) {
    if (i < 11) EXPECT_OK(store->get("key" + std::to_string(i + 1), kLong).status());
    EXPECT_OK(store->set("key" + std::to_string(i), "x"));
  });
  EXPECT_OK(store->get("key0", Duration::zero()).status());
}

TEST_P(StoreConformance, concurrent_adds_give_every_sum_once) {
  constexpr int kClients = 4;
  constexpr int kThreads = 2;
  constexpr int kAdds = 50;
  std::vector<std::shared_ptr<Store>> stores;
  for (int i = 0; i < kClients; ++i) stores.push_back(client());
  std::mutex mutex;
  std::multiset<std::int64_t> sums;
  in_threads(kClients * kThreads, [&](int i) {
    for (int n = 0; n < kAdds; ++n) {
      const Result<std::int64_t> sum = stores[static_cast<std::size_t>(i % kClients)]->add("count", 1);
      ASSERT_TRUE(sum.ok()) << sum.status().to_string();
      const std::lock_guard lock(mutex);
      sums.insert(*sum);
    }
  });
  std::multiset<std::int64_t> expected;
  for (int sum = 1; sum <= kClients * kThreads * kAdds; ++sum) expected.insert(sum);
  EXPECT_EQ(sums, expected);
}

TEST_P(StoreConformance, a_reader_never_sees_a_partial_value) {
  const auto writer = client();
  const auto reader = client();
  EXPECT_OK(writer->set("value", std::string(300'000, 'a')));
  std::atomic<bool> done{false};
  std::thread writing([&] {
    for (int i = 0; i < 60; ++i) EXPECT_OK(writer->set("value", std::string(300'000 - i, i % 2 == 0 ? 'a' : 'b')));
    done = true;
  });
  while (!done) {
    const Result<std::string> seen = reader->get("value", kLong);
    ASSERT_TRUE(seen.ok()) << seen.status().to_string();
    EXPECT_GT(seen->size(), 299'900u);
    EXPECT_EQ(seen->find_first_not_of(seen->front()), std::string::npos);
  }
  writing.join();
}

TEST_P(StoreConformance, matches_a_map_over_a_thousand_random_calls) {
  std::mt19937 random(17);
  std::map<std::string, std::string> expected;
  const std::shared_ptr<Store> stores[] = {client(), client()};
  for (int i = 0; i < 1000; ++i) {
    Store& store = *stores[random() % 2];
    const std::string key = "key/" + std::to_string(random() % 10);
    switch (random() % 4) {
      case 0: {
        const std::string value = random() % 2 == 0 ? std::to_string(random()) : std::string(random() % 50, 'x');
        EXPECT_OK(store.set(key, value));
        expected[key] = value;
        break;
      }
      case 1: {
        const Result<std::string> got = store.get(key, Duration::zero());
        ASSERT_EQ(got.ok(), expected.contains(key));
        if (got.ok()) {
          EXPECT_EQ(*got, expected[key]);
        }
        break;
      }
      case 2: {
        const auto delta = static_cast<std::int64_t>(random() % 100) - 50;
        const Result<std::int64_t> sum = store.add(key, delta);
        const bool number = !expected.contains(key) || (!expected[key].empty() && expected[key][0] != 'x');
        ASSERT_EQ(sum.ok(), number);
        if (number) {
          expected[key] = std::to_string((expected.contains(key) ? std::stoll(expected[key]) : 0) + delta);
          EXPECT_EQ(std::to_string(*sum), expected[key]);
        }
        break;
      }
      default: EXPECT_OK(store.erase(key)); expected.erase(key);
    }
  }
}

TEST_P(StoreConformance, describes_its_location) { EXPECT_NE(client()->describe(), ""); }

}  // namespace
}  // namespace accord
