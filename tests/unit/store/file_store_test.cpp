// Properties of the file store alone: files.
#include "store/file_store.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "accord/store.hpp"
#include "base/fd.hpp"
#include "conformance/store/directory.hpp"

namespace accord {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(FileStore, creates_its_directory_and_reports_its_absolute_path) {
  const testing_support::TemporaryDirectory directory;
  const std::string path = directory.path() + "/a/b";
  const auto store = make_file_store(path);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_TRUE(std::filesystem::is_directory(path));
  EXPECT_EQ((*store)->describe(), "file://" + path);
}

TEST(FileStore, keeps_its_values_after_all_clients_exit) {
  const testing_support::TemporaryDirectory directory;
  ASSERT_TRUE(make_file_store(directory.path()).value()->set("key", "value").ok());
  EXPECT_EQ(*make_file_store(directory.path()).value()->get("key", 0s), "value");
}

TEST(FileStore, keys_never_refer_outside_its_directory) {
  const testing_support::TemporaryDirectory directory;
  const auto store = make_file_store(directory.path() + "/store").value();
  for (const std::string key : {"../escaped", "/escaped", "..", "a/../../escaped"}) {
    ASSERT_TRUE(store->set(key, "value").ok());
    EXPECT_EQ(*store->get(key, 0s), "value");
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path() + "/store")) {
    EXPECT_TRUE(entry.is_regular_file()) << entry.path();
  }
}

TEST(FileStore, an_unusable_directory_is_an_error_that_names_it) {
  const testing_support::TemporaryDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "taken";
  for (const std::string& path : {file, file + "/below"}) {
    const Status status = make_file_store(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(path));
  }
  EXPECT_EQ(make_file_store("").status().code(), StatusCode::kInvalidArgument);
}

TEST(FileStore, reports_that_its_directory_was_removed) {
  const testing_support::TemporaryDirectory directory;
  const std::string path = directory.path() + "/gone";
  const auto store = make_file_store(path).value();
  std::filesystem::remove_all(path);
  const Status status = store->set("key", "value");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(path));
}

TEST(FileStore, ends_a_waiting_get_when_its_directory_is_removed) {
  const testing_support::TemporaryDirectory directory;
  const std::string path = directory.path() + "/gone";
  const auto store = make_file_store(path).value();
  std::thread remover([&] { std::filesystem::remove_all(path); });
  const Status status = store->get("key", 1h).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(path));
  remover.join();
}

// As when a process is stopped in the middle of a write.
TEST(FileStore, while_its_lock_is_held_it_is_read_and_writers_fail_and_name_the_holder) {
  const testing_support::TemporaryDirectory directory;
  const auto store = store::make_file_store(directory.path(), 1ms).value();
  ASSERT_EQ(*store->add("count", 3), 3);
  const UniqueFd lock(open((directory.path() + "/.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  EXPECT_EQ(*store->get("count", 0s), "3");
  EXPECT_EQ(*store->add("count", 0), 3);
  const std::string expected =
      "store file://" + directory.path() + ": " + directory.path() + "/.lock has been locked for ";
  for (const Status& status : {store->set("key", "value"), store->add("count", 1).status(), store->erase("count")}) {
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_THAT(status.message(), HasSubstr(expected));
    EXPECT_THAT(status.message(), HasSubstr("by process " + std::to_string(getpid())));
  }
  ASSERT_EQ(flock(lock.get(), LOCK_UN), 0);
  EXPECT_EQ(*store->add("count", 1), 4);
  EXPECT_EQ(store->get("key", 0s).status().code(), StatusCode::kTimeout);
}

}  // namespace
}  // namespace accord
