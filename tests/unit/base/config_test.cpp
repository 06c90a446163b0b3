#include "base/config.hpp"

#include <gmock/gmock.h>

namespace accord {
namespace {

using testing::HasSubstr;

Status status_of(const std::string& name, const std::string& value) { return parse_config({{name, value}}).status(); }

TEST(Config, without_variables_has_its_defaults) {
  const Result<Config> config = parse_config({});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->log_level, "warn");
  EXPECT_EQ(config->timeout, std::chrono::minutes(5));
  EXPECT_EQ(config->transport, "auto");
  EXPECT_EQ(config->hints.slot_bytes, std::size_t{1} << 20);
  EXPECT_EQ(config->hints.wait, std::nullopt);
  EXPECT_EQ(config->threads, 1);
  EXPECT_EQ(config->hints.recorder_size, 1024u);
  EXPECT_EQ(config->debug, "off");
  EXPECT_EQ(config->dump_directory, "");
}

TEST(Config, the_defaults_written_in_the_table_are_the_defaults) {
  std::map<std::string, std::string> environment;
  for (const ConfigEntry& entry : config_entries()) environment.emplace(entry.variable, entry.default_value);
  const Result<Config> written = parse_config(environment);
  ASSERT_TRUE(written.ok()) << written.status().to_string();
  const Config defaults;
  EXPECT_EQ(written->log_level, defaults.log_level);
  EXPECT_EQ(written->timeout, defaults.timeout);
  EXPECT_EQ(written->transport, defaults.transport);
  EXPECT_EQ(written->select, defaults.select);
  EXPECT_EQ(written->hints, defaults.hints);
  EXPECT_EQ(written->threads, defaults.threads);
  EXPECT_EQ(written->debug, defaults.debug);
  EXPECT_EQ(written->dump_directory, defaults.dump_directory);
}

TEST(Config, reads_every_variable) {
  const Result<Config> config = parse_config({{"ACCORD_LOG", "debug"},
                                              {"ACCORD_TIMEOUT", "1.5"},
                                              {"ACCORD_TRANSPORT", "shm"},
                                              {"ACCORD_SELECT", "all_reduce=two_shot"},
                                              {"ACCORD_SLOT_BYTES", "64k"},
                                              {"ACCORD_WAIT", "spin"},
                                              {"ACCORD_THREADS", "4"},
                                              {"ACCORD_DEBUG", "info"},
                                              {"ACCORD_RECORDER_SIZE", "256"},
                                              {"ACCORD_SINGLE_COPY", "off"},
                                              {"ACCORD_KERNEL_OVERLAP", "off"},
                                              {"ACCORD_DUMP_DIR", "dumps"}});
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(config->transport, "shm");
  EXPECT_EQ(config->select, "all_reduce=two_shot");
  EXPECT_EQ(config->hints.slot_bytes, 65536u);
  EXPECT_EQ(config->hints.wait, WaitPolicy::kSpin);
  EXPECT_EQ(config->threads, 4);
  EXPECT_EQ(config->hints.recorder_size, 256u);
  EXPECT_FALSE(config->single_copy);
  EXPECT_FALSE(config->kernel_overlap);
  EXPECT_EQ(config->debug, "info");
  EXPECT_EQ(config->dump_directory, "dumps");
}

TEST(Config, a_range_of_ranks_is_two_numbers) {
  const Result<Config> config = parse_config({{"ACCORD_ELASTIC", "2:65536"}});
  ASSERT_TRUE(config.ok() && config->elastic);
  EXPECT_EQ(config->elastic->least, 2);
  EXPECT_EQ(config->elastic->most, 65536);
  EXPECT_FALSE(parse_config({})->elastic);
}

TEST(Config, an_unknown_variable_is_an_error_that_names_the_nearest) {
  const Status status = status_of("ACCORD_TIMEOUTS", "3");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "unknown environment variable \"ACCORD_TIMEOUTS\"; did you mean \"ACCORD_TIMEOUT\"?");
  EXPECT_THAT(status_of("ACCORD_COLOUR", "red").message(),
              HasSubstr("available: ACCORD_LOG, ACCORD_DEBUG, ACCORD_TIMEOUT"));
  EXPECT_FALSE(status_of("ACCORD_", "").ok());
}

TEST(Config, other_programs_variables_are_ignored) {
  EXPECT_TRUE(
      parse_config({{"PATH", "/bin"}, {"ACCORDION", "yes"}, {"accord_log", "x"}, {"TORCH_ACCORD_LOG", "x"}}).ok());
}

TEST(Config, build_variables_are_ignored_at_run_time) {
  for (const char* value : {"ON", "OFF", "AUTO", "", "sometimes"}) {
    const Result<Config> config = parse_config({{"ACCORD_CUDA", value}, {"ACCORD_THREADS", "3"}});
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(config->threads, 3);
  }
  EXPECT_EQ(status_of("ACCORD_CUDAS", "ON").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of("ACCORD_TESTS", "ON").code(), StatusCode::kInvalidArgument);
}

TEST(Config, an_invalid_or_out_of_range_value_names_its_variable) {
  const std::pair<const char*, const char*> refused[] = {
      {"ACCORD_LOG", "loud"},           {"ACCORD_LOG", ""},
      {"ACCORD_DEBUG", "loud"},         {"ACCORD_TIMEOUT", "0"},
      {"ACCORD_TIMEOUT", "-1"},         {"ACCORD_TIMEOUT", "5 min"},
      {"ACCORD_TIMEOUT", "nan"},        {"ACCORD_TIMEOUT", "inf"},
      {"ACCORD_TIMEOUT", "1e300"},      {"ACCORD_TIMEOUT", "99999999999"},
      {"ACCORD_TRANSPORT", "shmem"},    {"ACCORD_RECORDER_SIZE", "8"},
      {"ACCORD_RECORDER_SIZE", "1000"}, {"ACCORD_SLOT_BYTES", "1"},
      {"ACCORD_WAIT", "sleep"},         {"ACCORD_SLOT_BYTES", "2g"},
      {"ACCORD_SLOT_BYTES", "inf"},     {"ACCORD_SLOT_BYTES", "5000"},
      {"ACCORD_SLOT_BYTES", "-4k"},     {"ACCORD_THREADS", "0"},
      {"ACCORD_THREADS", "1025"},       {"ACCORD_THREADS", "two"},
      {"ACCORD_SINGLE_COPY", "on"},     {"ACCORD_ROUTE", "yes"},
      {"ACCORD_ELASTIC", "4"},          {"ACCORD_ELASTIC", "4:2"},
      {"ACCORD_ELASTIC", "0:2"},        {"ACCORD_ELASTIC", "1:2:3"},
      {"ACCORD_ELASTIC", "1:65537"},    {"ACCORD_ELASTIC", ":2"}};
  for (const auto& [name, value] : refused) {
    const Status status = status_of(name, value);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << "=" << value;
    EXPECT_THAT(status.message(), HasSubstr(std::string("environment variable ") + name)) << value;
  }
  EXPECT_THAT(status_of("ACCORD_TRANSPORT", "smh").message(), HasSubstr("did you mean \"shm\""));
}

TEST(Hints, set_variables_of_one_group_and_leave_the_others_unchanged) {
  const GroupHints before{.wait = WaitPolicy::kSpin, .slot_bytes = 8192, .recorder_size = 64};
  EXPECT_EQ(parse_hints("", before).value(), before);
  EXPECT_EQ(parse_hints("slot_bytes=64k", before).value(),
            (GroupHints{.wait = WaitPolicy::kSpin, .slot_bytes = 65536, .recorder_size = 64}));
  EXPECT_EQ(parse_hints("wait=yield,recorder_size=16", before).value(),
            (GroupHints{.wait = WaitPolicy::kYield, .slot_bytes = 8192, .recorder_size = 16}));
  EXPECT_EQ(parse_hints("wait=auto", before)->wait, std::nullopt);
  const GroupHints on_gpus{
      .is_high_priority_stream = true, .cga_cluster_size = 0, .min_ctas = 2, .max_ctas = 64, .net_name = "IB"};
  EXPECT_EQ(
      parse_hints("is_high_priority_stream=yes,cga_cluster_size=0,min_ctas=2,max_ctas=64,net_name=IB", {}).value(),
      on_gpus);
  EXPECT_EQ(
      parse_hints("is_high_priority_stream=no,cga_cluster_size=auto,min_ctas=auto,max_ctas=auto,net_name=auto", on_gpus)
          .value(),
      GroupHints());
}

TEST(Hints, that_are_unknown_or_invalid_are_rejected_by_name) {
  const std::pair<const char*, const char*> refused[] = {
      {"slot_byte=64k", "did you mean \"slot_bytes\"?"},
      {"log=info", "available: wait, slot_bytes, recorder_size, is_high"},
      {"wait=spin,", "unknown hint \"\""},
      {"wait", "hint wait has no value; write wait=VALUE"},
      {"wait=spin,wait=auto", "hint wait is given twice"},
      {"=spin", "unknown hint \"\""},
      {"wait=spn", "hint wait: unknown wait policy \"spn\""},
      {"slot_bytes=5000", "hint slot_bytes: "},
      {"wait=yield,recorder_size=17", "hint recorder_size: "},
      {"max_ctas=65", "hint max_ctas: \"65\" is not a number from 1 to 64"},
      {"cga_cluster_size=many", "hint cga_cluster_size: "},
      {"is_high_priority_stream=1", "hint is_high_priority_stream: "}};
  for (const auto& [text, why] : refused) {
    const Status status = parse_hints(text, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(why)) << text;
  }
}

TEST(Config, of_this_process_is_read_once) { EXPECT_EQ(&config(), &config()); }

}  // namespace
}  // namespace accord
