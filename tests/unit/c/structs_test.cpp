// Structs of a different size: from programs that were compiled with an older or a newer header, or that did not use
// the _INIT macro.
#include "c/structs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "ranks/process_ranks.hpp"
#include "unit/c/c_ranks.hpp"
#include "unit/engine/package/small_packages.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::is_ok;

// A struct in memory as a newer or older header may have laid it out.
template <typename Struct>
class StructSize : public ::testing::Test {
 protected:
  struct Longer {
    Struct known;
    unsigned char rest[24] = {};
  };
};

template <typename Struct>
Struct initial();
template <>
accord_tcp_store_options_t initial() {
  accord_tcp_store_options_t options = ACCORD_TCP_STORE_OPTIONS_INIT;
  options.role = ACCORD_STORE_HOST;
  return options;
}
template <>
accord_communicator_options_t initial() {
  return ACCORD_COMMUNICATOR_OPTIONS_INIT;
}
template <>
accord_elastic_options_t initial() {
  return ACCORD_ELASTIC_OPTIONS_INIT;
}
template <>
accord_call_t initial() {
  accord_call_t call = ACCORD_CALL_INIT;
  call.kind = ACCORD_CALL_BARRIER;
  return call;
}
template <>
accord_call_options_t initial() {
  return ACCORD_CALL_OPTIONS_INIT;
}

template <>
accord_plan_options_t initial() {
  return ACCORD_PLAN_OPTIONS_INIT;
}

template <>
accord_engine_options_t initial() {
  return ACCORD_ENGINE_OPTIONS_INIT;
}
template <>
accord_language_model_options_t initial() {
  return ACCORD_LANGUAGE_MODEL_OPTIONS_INIT;
}

template <>
accord_expert_config_t initial() {
  accord_expert_config_t config = ACCORD_EXPERT_CONFIG_INIT;
  config.experts = config.top_k = config.hidden = config.max_tokens_per_rank = 1;
  return config;
}
template <>
accord_expert_layer_t initial() {
  return ACCORD_EXPERT_LAYER_INIT;
}
template <>
accord_expert_routing_t initial() {
  return ACCORD_EXPERT_ROUTING_INIT;
}
template <>
accord_expert_rows_t initial() {
  accord_expert_rows_t rows = ACCORD_EXPERT_ROWS_INIT;
  rows.dtype = ACCORD_BFLOAT16;
  return rows;
}

accord_status_t use(const accord_tcp_store_options_t* options) {
  accord_store_t* store = nullptr;
  const accord_status_t status = accord_tcp_store_create(options, &store);
  EXPECT_EQ(store != nullptr, status == ACCORD_OK);
  accord_store_free(store);
  return status;
}
/// Calls `body` with a group of one.
accord_status_t in_a_group(const accord_communicator_options_t* options,
                           const std::function<accord_status_t(accord_communicator_t*)>& body) {
  accord_store_t* store = nullptr;
  accord_communicator_t* comm = nullptr;
  EXPECT_TRUE(is_ok(accord_memory_store_create(&store)));
  accord_status_t status = accord_communicator_create(store, 0, 1, options, &comm);
  EXPECT_EQ(comm != nullptr, status == ACCORD_OK);
  if (status == ACCORD_OK) status = body(comm);
  accord_communicator_free(comm);
  accord_store_free(store);
  return status;
}
accord_status_t use(const accord_communicator_options_t* options) {
  return in_a_group(options, [](accord_communicator_t* comm) { return accord_barrier(comm, nullptr); });
}
accord_status_t use(const accord_elastic_options_t* options) {
  accord_store_t* store = nullptr;
  accord_elastic_group_t* group = nullptr;
  EXPECT_TRUE(is_ok(accord_memory_store_create(&store)));
  const accord_status_t status = accord_elastic_group_open(store, options, &group);
  EXPECT_EQ(group != nullptr, status == ACCORD_OK);
  accord_elastic_group_free(group);
  accord_store_free(store);
  return status;
}
accord_status_t use(const accord_call_t* call) {
  return in_a_group(nullptr, [&](accord_communicator_t* comm) { return accord_run(comm, call, nullptr); });
}
accord_status_t use(const accord_call_options_t* options) {
  return in_a_group(nullptr, [&](accord_communicator_t* comm) { return accord_barrier(comm, options); });
}
accord_status_t use(const accord_plan_options_t* options) {
  const accord_status_t status = accord_register_plan("no plan", options);
  if (status != ACCORD_CORRUPT) return status;
  EXPECT_THAT(accord_last_error(), HasSubstr("JSON"));
  return ACCORD_OK;
}

accord_status_t load_encoder(const accord_engine_options_t* options, accord_engine_t** engine) {
  const testing::TemporaryDirectory directory;
  engine::TinyEncoder(4).write(directory.path() + "/encoder.accord");
  return accord_engine_load((directory.path() + "/encoder.accord").c_str(), nullptr, 0, options, engine);
}
accord_status_t use(const accord_engine_options_t* options) {
  accord_engine_t* engine = nullptr;
  const accord_status_t status = load_encoder(options, &engine);
  EXPECT_EQ(engine != nullptr, status == ACCORD_OK);
  accord_engine_free(engine);
  return status;
}

// An encoder is not a language model, which is detected after the options have been read.
accord_status_t use(const accord_language_model_options_t* options) {
  accord_engine_t* engine = nullptr;
  EXPECT_TRUE(is_ok(load_encoder(nullptr, &engine)));
  accord_language_model_t* model = nullptr;
  const accord_status_t status = accord_language_model_create(engine, options, nullptr, &model);
  EXPECT_EQ(model, nullptr);
  accord_engine_free(engine);
  return status == ACCORD_UNSUPPORTED ? ACCORD_OK : status;
}

accord_status_t use(const accord_expert_config_t* config) {
  return in_a_group(nullptr, [&](accord_communicator_t* comm) {
    accord_expert_group_t* group = nullptr;
    const accord_status_t status = accord_expert_group_create(comm, config, &group);
    EXPECT_EQ(group != nullptr, status == ACCORD_OK);
    accord_expert_group_free(group);
    return status;
  });
}
/// Calls `body` with a group and with a handle that is prepared for no tokens.
accord_status_t with_experts(
    const std::function<accord_status_t(accord_expert_group_t*, accord_expert_handle_t*)>& body) {
  return in_a_group(nullptr, [&](accord_communicator_t* comm) {
    const auto config = initial<accord_expert_config_t>();
    const auto routing = initial<accord_expert_routing_t>();
    accord_expert_group_t* group = nullptr;
    accord_expert_handle_t* handle = nullptr;
    EXPECT_TRUE(is_ok(accord_expert_group_create(comm, &config, &group)));
    EXPECT_TRUE(is_ok(accord_expert_handle_create(group, nullptr, &handle)));
    EXPECT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    const accord_status_t status = body(group, handle);
    accord_expert_handle_free(handle);
    accord_expert_group_free(group);
    return status;
  });
}
accord_status_t use(const accord_expert_layer_t* layer) {
  return with_experts([&](accord_expert_group_t* group, accord_expert_handle_t*) {
    accord_expert_handle_t* handle = nullptr;
    const accord_status_t status = accord_expert_handle_create(group, layer, &handle);
    EXPECT_EQ(handle != nullptr, status == ACCORD_OK);
    accord_expert_handle_free(handle);
    return status;
  });
}
accord_status_t use(const accord_expert_routing_t* routing) {
  return with_experts([&](accord_expert_group_t* group, accord_expert_handle_t* handle) {
    return accord_expert_prepare(group, handle, routing);
  });
}
accord_status_t use(const accord_expert_rows_t* rows) {
  return with_experts([&](accord_expert_group_t* group, accord_expert_handle_t* handle) {
    return accord_expert_dispatch(group, handle, rows);
  });
}

template <typename Struct>
const char* name_of();
template <>
const char* name_of<accord_expert_config_t>() {
  return "accord_expert_config_t";
}
template <>
const char* name_of<accord_expert_layer_t>() {
  return "accord_expert_layer_t";
}
template <>
const char* name_of<accord_expert_routing_t>() {
  return "accord_expert_routing_t";
}
template <>
const char* name_of<accord_expert_rows_t>() {
  return "accord_expert_rows_t";
}
template <>
const char* name_of<accord_tcp_store_options_t>() {
  return "accord_tcp_store_options_t";
}
template <>
const char* name_of<accord_communicator_options_t>() {
  return "accord_communicator_options_t";
}
template <>
const char* name_of<accord_call_t>() {
  return "accord_call_t";
}
template <>
const char* name_of<accord_elastic_options_t>() {
  return "accord_elastic_options_t";
}
template <>
const char* name_of<accord_call_options_t>() {
  return "accord_call_options_t";
}

template <>
const char* name_of<accord_plan_options_t>() {
  return "accord_plan_options_t";
}

template <>
const char* name_of<accord_engine_options_t>() {
  return "accord_engine_options_t";
}
template <>
const char* name_of<accord_language_model_options_t>() {
  return "accord_language_model_options_t";
}

using Structs = ::testing::Types<accord_tcp_store_options_t, accord_communicator_options_t, accord_elastic_options_t,
                                 accord_call_t, accord_call_options_t, accord_plan_options_t, accord_engine_options_t,
                                 accord_language_model_options_t, accord_expert_config_t, accord_expert_layer_t,
                                 accord_expert_routing_t, accord_expert_rows_t>;
TYPED_TEST_SUITE(StructSize, Structs);

TYPED_TEST(StructSize, set_by_the_macro_is_accepted) {
  const TypeParam known = initial<TypeParam>();
  EXPECT_EQ(known.struct_size, sizeof(TypeParam));
  EXPECT_TRUE(is_ok(use(&known)));
}

TYPED_TEST(StructSize, that_is_invalid_is_rejected_with_the_name_of_the_struct) {
  const size_t first_size = c::kStructRule<TypeParam>.first_size;
  for (const size_t size : {size_t{0}, size_t{7}, first_size - 1, size_t{1} << 40, SIZE_MAX}) {
    TypeParam known = initial<TypeParam>();
    known.struct_size = size;
    EXPECT_EQ(use(&known), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), AllOf(HasSubstr(name_of<TypeParam>()),
                                           HasSubstr("struct_size of " + std::to_string(size)), HasSubstr("_INIT")));
  }
}

TYPED_TEST(StructSize, of_a_newer_header_is_accepted_unless_a_new_field_is_set) {
  typename TestFixture::Longer longer = {.known = initial<TypeParam>()};
  longer.known.struct_size = sizeof(longer);
  EXPECT_TRUE(is_ok(use(&longer.known)));
  longer.rest[20] = 1;
  EXPECT_EQ(use(&longer.known), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), AllOf(HasSubstr(name_of<TypeParam>()),
                                         HasSubstr("byte " + std::to_string(sizeof(TypeParam) + 20) + " is set")));
}

TEST(ReservedFields, are_zero) {
  accord_language_model_options_t options = ACCORD_LANGUAGE_MODEL_OPTIONS_INIT;
  options.reserved = 1;
  EXPECT_EQ(use(&options), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("reserved is 1, expected 0"));
}

TEST(StructOfAnOlderHeader, has_no_fields_beyond_its_end) {
  accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
  options.hints = "no hint";
  EXPECT_EQ(use(&options), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("unknown hint \"no hint\""));
  options.struct_size = 40;  // as in the header without hints
  EXPECT_TRUE(is_ok(use(&options)));
}

// A struct that accord fills in: fields of a newer header become zero, and the memory after an older one is left
// alone.
TEST(StructsForResults, are_filled_as_far_as_the_callers_size) {
  ASSERT_TRUE(is_ok(in_a_group(nullptr, [](accord_communicator_t* comm) {
    struct {
      accord_counters_t known;
      unsigned char rest[24];
    } longer;
    std::memset(&longer, 0xff, sizeof(longer));
    longer.known.struct_size = sizeof(longer);
    EXPECT_TRUE(is_ok(accord_communicator_counters(comm, &longer.known)));
    EXPECT_EQ(longer.known.struct_size, sizeof(longer));
    EXPECT_EQ(longer.known.waits, 0U);
    EXPECT_EQ(longer.rest[0] + longer.rest[23], 0);
    longer.known.struct_size = 31;
    EXPECT_EQ(accord_communicator_counters(comm, &longer.known), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), AllOf(HasSubstr("struct_size of 31"), HasSubstr("ACCORD_COUNTERS_INIT")));
    return ACCORD_OK;
  })));
}

}  // namespace
}  // namespace accord
