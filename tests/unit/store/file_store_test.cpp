// Properties of the file store alone: files.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "accord/store.hpp"
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

}  // namespace
}  // namespace accord
