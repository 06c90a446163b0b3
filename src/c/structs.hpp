#pragma once
// Reads the structs of accord.h in whichever version the caller was compiled with.

#include <string_view>
#include <type_traits>

#include "accord/accord.h"
#include "accord/status.hpp"

namespace accord::c {

/// The names of a struct in messages, and the size of its first version, which never changes.
struct StructRule {
  std::string_view name;
  std::string_view initializer;
  std::size_t first_size;
};

template <typename Struct>
inline constexpr StructRule kStructRule = {};
template <>
inline constexpr StructRule kStructRule<accord_tcp_store_options_t> = {"accord_tcp_store_options_t",
                                                                       "ACCORD_TCP_STORE_OPTIONS_INIT", 32};
template <>
inline constexpr StructRule kStructRule<accord_communicator_options_t> = {"accord_communicator_options_t",
                                                                          "ACCORD_COMMUNICATOR_OPTIONS_INIT", 40};
template <>
inline constexpr StructRule kStructRule<accord_elastic_options_t> = {"accord_elastic_options_t",
                                                                     "ACCORD_ELASTIC_OPTIONS_INIT", 48};
template <>
inline constexpr StructRule kStructRule<accord_call_t> = {"accord_call_t", "ACCORD_CALL_INIT", 88};
template <>
inline constexpr StructRule kStructRule<accord_call_options_t> = {"accord_call_options_t", "ACCORD_CALL_OPTIONS_INIT",
                                                                  32};

template <>
inline constexpr StructRule kStructRule<accord_counters_t> = {"accord_counters_t", "ACCORD_COUNTERS_INIT", 32};
template <>
inline constexpr StructRule kStructRule<accord_plan_options_t> = {"accord_plan_options_t", "ACCORD_PLAN_OPTIONS_INIT",
                                                                  24};

template <>
inline constexpr StructRule kStructRule<accord_expert_config_t> = {"accord_expert_config_t",
                                                                   "ACCORD_EXPERT_CONFIG_INIT", 80};
template <>
inline constexpr StructRule kStructRule<accord_expert_layer_t> = {"accord_expert_layer_t", "ACCORD_EXPERT_LAYER_INIT",
                                                                  16};
template <>
inline constexpr StructRule kStructRule<accord_expert_map_t> = {"accord_expert_map_t", "ACCORD_EXPERT_MAP_INIT", 56};
template <>
inline constexpr StructRule kStructRule<accord_expert_statistics_t> = {"accord_expert_statistics_t",
                                                                       "ACCORD_EXPERT_STATISTICS_INIT", 56};
template <>
inline constexpr StructRule kStructRule<accord_expert_device_map_t> = {"accord_expert_device_map_t",
                                                                       "ACCORD_EXPERT_DEVICE_MAP_INIT", 24};
template <>
inline constexpr StructRule kStructRule<accord_expert_routing_t> = {"accord_expert_routing_t",
                                                                    "ACCORD_EXPERT_ROUTING_INIT", 40};
template <>
inline constexpr StructRule kStructRule<accord_expert_rows_t> = {"accord_expert_rows_t", "ACCORD_EXPERT_ROWS_INIT", 80};

template <>
inline constexpr StructRule kStructRule<accord_engine_options_t> = {"accord_engine_options_t",
                                                                    "ACCORD_ENGINE_OPTIONS_INIT", 24};
template <>
inline constexpr StructRule kStructRule<accord_language_model_options_t> = {"accord_language_model_options_t",
                                                                            "ACCORD_LANGUAGE_MODEL_OPTIONS_INIT", 32};
template <>
inline constexpr StructRule kStructRule<accord_text_request_t> = {"accord_text_request_t", "ACCORD_TEXT_REQUEST_INIT",
                                                                  104};
template <>
inline constexpr StructRule kStructRule<accord_text_event_t> = {"accord_text_event_t", "ACCORD_TEXT_EVENT_INIT", 24};

/// Whether a struct has no padding, in which a later field could hide. For a struct with floats the type trait is
/// false, so its size is added up by hand.
template <typename Struct>
inline constexpr bool kIsWithoutPadding = std::has_unique_object_representations_v<Struct>;
template <>
inline constexpr bool kIsWithoutPadding<accord_text_request_t> = sizeof(accord_text_request_t) ==
                                                                 8 * 8 + 4 * sizeof(int32_t) + 4 * sizeof(double);

/// A struct that claims to be larger than this is considered uninitialized, and is not read.
inline constexpr std::size_t kMaxStructBytes = 4096;

/// Copies the `known` bytes of a struct to `to`. Fields that the caller's version lacks keep the values in `to`.
/// Fails with kInvalidArgument, with `function` and the struct's name, if its size is invalid or if fields beyond the
/// known ones are not zero.
Status copy_struct(const void* from, void* to, std::size_t known, const StructRule& rule, std::string_view function);

/// Fails with kInvalidArgument unless the field that reserves space for a later one is 0.
Status check_reserved(std::int32_t reserved, const StructRule& rule, std::string_view function);

/// Returns `given` in this library's version; the default if it is null.
template <typename Struct>
Result<Struct> read_struct(const Struct* given, std::string_view function) {
  static_assert(kIsWithoutPadding<Struct>);
  static_assert(sizeof(Struct) >= kStructRule<Struct>.first_size && kStructRule<Struct>.first_size > 0);
  Struct known = {};
  if (given != nullptr)
    ACCORD_RETURN_IF_ERROR(copy_struct(given, &known, sizeof(Struct), kStructRule<Struct>, function));
  if constexpr (requires { known.reserved; })
    ACCORD_RETURN_IF_ERROR(check_reserved(known.reserved, kStructRule<Struct>, function));
  return known;
}

/// Fills in the `known` bytes of a result struct that the caller passed. Fields that the caller's version lacks are
/// omitted, and fields that this library does not know are set to zero. Fails with kInvalidArgument as copy_struct()
/// does.
Status fill_struct(const void* from, void* to, std::size_t known, const StructRule& rule, std::string_view function);

/// Fails with kInvalidArgument if the struct's size is invalid.
Status check_struct(const void* given, std::size_t known, const StructRule& rule, std::string_view function);

/// Checks that write_struct() will accept `given`, for a caller that must not lose the result that it is about to
/// write.
template <typename Struct>
Status check_result(const Struct* given, std::string_view function) {
  return check_struct(given, sizeof(Struct), kStructRule<Struct>, function);
}

template <typename Struct>
Status write_struct(const Struct& result, Struct* given, std::string_view function) {
  static_assert(sizeof(Struct) >= kStructRule<Struct>.first_size && kStructRule<Struct>.first_size > 0);
  return fill_struct(&result, given, sizeof(Struct), kStructRule<Struct>, function);
}

}  // namespace accord::c
