// Language models for C callers.
#include "accord/language_model.hpp"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"
#include "c/times.hpp"

using accord::FinishReason;
using accord::LanguageModel;
using accord::LanguageModelOptions;
using accord::Result;
using accord::Status;
using accord::TextRequest;
using accord::c::answer;

namespace {

Result<LanguageModelOptions> options_of(const accord_language_model_options_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_language_model_options_t read, accord::c::read_struct(given, function));
  LanguageModelOptions options;
  options.cache_tokens = read.cache_tokens;
  if (read.block_tokens != 0) options.block_tokens = read.block_tokens;
  if (read.cache_dtype != 0) {
    ACCORD_ASSIGN_OR_RETURN(options.cache_dtype,
                            accord::c::value_of(accord::c::kDTypes, read.cache_dtype, function, "cache_dtype"));
  }
  if (read.max_sequences != 0) options.max_sequences = read.max_sequences;
  if (read.max_rows != 0) options.max_rows = read.max_rows;
  return options;
}

Result<TextRequest> request_of(const accord_text_request_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_text_request_t read, accord::c::read_struct(given, function));
  if (read.messages == nullptr && read.message_count > 0) return accord::c::null_argument(function, "messages");
  if (read.stop == nullptr && read.stop_count > 0) return accord::c::null_argument(function, "stop");
  TextRequest request;
  if (read.prompt != nullptr) request.prompt = read.prompt;
  for (const accord_message_t& message : std::span(read.messages, read.message_count)) {
    if (message.role == nullptr || message.content == nullptr)
      return accord::c::null_argument(function, "a message's role or content");
    request.messages.push_back({message.role, message.content});
  }
  for (const char* stop : std::span(read.stop, read.stop_count)) {
    if (stop == nullptr) return accord::c::null_argument(function, "an element of stop");
    request.stop.emplace_back(stop);
  }
  accord::SamplingOptions& sampling = request.options.sampling;
  sampling.seed = read.seed;
  sampling.top_k = read.top_k;
  sampling.temperature = static_cast<float>(read.temperature);
  if (read.top_p != 0) sampling.top_p = static_cast<float>(read.top_p);
  sampling.min_p = static_cast<float>(read.min_p);
  if (read.repetition_penalty != 0) sampling.repetition_penalty = static_cast<float>(read.repetition_penalty);
  if (read.max_new_tokens != 0) request.options.max_new_tokens = read.max_new_tokens;
  if (read.samples != 0) request.options.samples = read.samples;
  request.options.priority = read.priority;
  if (read.adapter != nullptr) request.options.adapter = read.adapter;
  return request;
}

}  // namespace

extern "C" accord_status_t accord_language_model_create(accord_engine_t* engine,
                                                        const accord_language_model_options_t* options,
                                                        accord_communicator_t* all_ranks,
                                                        accord_language_model_t** model) {
  if (model != nullptr) *model = nullptr;
  return answer(__func__, {{"engine", engine}, {"model", model}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const LanguageModelOptions read, options_of(options, function));
    std::optional<accord::Communicator> everyone;
    if (all_ranks != nullptr) everyone = all_ranks->communicator;
    ACCORD_ASSIGN_OR_RETURN(LanguageModel made, LanguageModel::create(engine->engine, read, everyone));
    *model = new accord_language_model{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_language_model_follow(accord_language_model_t* model) {
  return answer(__func__, {{"model", model}}, [&](std::string_view) { return model->model.follow(); });
}

extern "C" accord_status_t accord_language_model_stop(accord_language_model_t* model) {
  return answer(__func__, {{"model", model}}, [&](std::string_view) { return model->model.stop(); });
}

extern "C" void accord_language_model_free(accord_language_model_t* model) { delete model; }

extern "C" accord_status_t accord_language_model_generate(accord_language_model_t* model,
                                                          const accord_text_request_t* request,
                                                          accord_text_stream_t** stream) {
  if (stream != nullptr) *stream = nullptr;
  return answer(__func__, {{"model", model}, {"request", request}, {"stream", stream}},
                [&](std::string_view function) -> Status {
                  ACCORD_ASSIGN_OR_RETURN(TextRequest read, request_of(request, function));
                  ACCORD_ASSIGN_OR_RETURN(accord::TextStream made, model->model.generate(std::move(read)));
                  *stream = new accord_text_stream{std::move(made)};
                  return {};
                });
}

extern "C" accord_status_t accord_text_stream_next(accord_text_stream_t* stream, int64_t timeout_ns,
                                                   accord_text_event_t* event) {
  return answer(__func__, {{"stream", stream}, {"event", event}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const accord::Duration timeout, accord::c::wait_of(timeout_ns, function));
    // Check before taking the text from the stream, which returns it only once.
    ACCORD_RETURN_IF_ERROR(accord::c::check_result(event, function));
    ACCORD_ASSIGN_OR_RETURN(std::optional<accord::TextEvent> next,
                            stream->stream.next(std::chrono::ceil<std::chrono::milliseconds>(timeout)));
    accord_text_event_t result = ACCORD_TEXT_EVENT_INIT;
    if (next) {
      ACCORD_RETURN_IF_ERROR(next->finish == FinishReason::kError ? next->status : Status());
      stream->text = std::move(next->text);
      result.text = stream->text.c_str();
      result.sample = next->sample;
      if (next->finish) result.finish = accord::c::number_of(accord::c::kFinishReasons, *next->finish);
    }
    return accord::c::write_struct(result, event, function);
  });
}

extern "C" accord_status_t accord_text_stream_usage(accord_text_stream_t* stream, int64_t* prompt_tokens,
                                                    int64_t* completion_tokens) {
  return answer(__func__, {{"stream", stream}}, [&](std::string_view) {
    const accord::TextUsage usage = stream->stream.usage();
    if (prompt_tokens != nullptr) *prompt_tokens = usage.prompt_tokens;
    if (completion_tokens != nullptr) *completion_tokens = usage.completion_tokens;
    return Status();
  });
}

extern "C" accord_status_t accord_text_stream_cancel(accord_text_stream_t* stream) {
  return answer(__func__, {{"stream", stream}}, [&](std::string_view) {
    stream->stream.cancel();
    return Status();
  });
}

extern "C" void accord_text_stream_free(accord_text_stream_t* stream) { delete stream; }
