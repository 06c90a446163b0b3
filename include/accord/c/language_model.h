/* Language models. Included by accord.h. */
#ifndef ACCORD_C_LANGUAGE_MODEL_H_
#define ACCORD_C_LANGUAGE_MODEL_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/engine.h"
#include "accord/c/status.h"
#include "accord/c/types.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* A language model on all ranks of an engine. Rank 0 takes requests, batches them and samples; the other ranks
 * follow. docs/language-models.md is the guide. */
typedef struct accord_language_model accord_language_model_t;

typedef struct accord_language_model_options {
  size_t struct_size;
  int32_t cache_tokens;       /* capacity of the KV cache in tokens, for all sequences together; 0: one full context */
  int32_t block_tokens;       /* a multiple of 16; 0: chosen for the model */
  accord_dtype_t cache_dtype; /* ACCORD_FLOAT32, ACCORD_BFLOAT16 or ACCORD_INT8; 0: ACCORD_FLOAT32 */
  int32_t max_sequences;      /* sequences that one step computes; 0: 64 */
  int32_t max_rows;           /* tokens that one step computes; 0: 512 */
  int32_t reserved;           /* must be 0 */
} accord_language_model_options_t;

#define ACCORD_LANGUAGE_MODEL_OPTIONS_INIT \
  { sizeof(accord_language_model_options_t), 0, 0, 0, 0, 0, 0 }

/* Creates the cache and, on rank 0, the thread that runs the model. Collective, and agreed. `all_ranks` connects all
 * ranks of an engine that is bound to several groups or to none; otherwise null. Fails with ACCORD_UNSUPPORTED if the
 * package is not a language model. */
ACCORD_API accord_status_t accord_language_model_create(accord_engine_t* engine,
                                                        const accord_language_model_options_t* options,
                                                        accord_communicator_t* all_ranks,
                                                        accord_language_model_t** model);
/* For the other ranks: computes what rank 0 decides, until rank 0 stops (ACCORD_OK) or something fails on any rank. */
ACCORD_API accord_status_t accord_language_model_follow(accord_language_model_t* model);
/* For rank 0: ends all requests and the follow calls of the other ranks. Idempotent. Returns the failure if there was
 * one. */
ACCORD_API accord_status_t accord_language_model_stop(accord_language_model_t* model);
/* On rank 0, stops the model and waits for the step in progress. A stream that has not ended keeps the model alive;
 * the last one then stops it. */
ACCORD_API void accord_language_model_free(accord_language_model_t* model);

/* One turn of a conversation. */
typedef struct accord_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} accord_message_t;

/* A text to continue or a conversation to answer, and how tokens are sampled. Options have the same meaning as in
 * transformers. */
typedef struct accord_text_request {
  size_t struct_size;
  const char* prompt;               /* or null */
  const accord_message_t* messages; /* instead of a prompt; rendered by the package's chat format */
  size_t message_count;
  const char* const* stop; /* texts that end an answer and are not part of it */
  size_t stop_count;
  uint64_t seed;          /* equal seeds give equal tokens, whatever else is computed and on any number of ranks */
  int32_t max_new_tokens; /* 0: as many as fit into the context and the cache */
  int32_t samples;        /* continuations of the same prompt; 0: 1 */
  int32_t priority;       /* [-100, 100], higher ones first */
  int32_t top_k;          /* sample from the k best tokens only; 0: all */
  double temperature;     /* 0: the best token */
  double top_p;           /* sample from the best tokens that together have this probability; 0: all */
  double min_p;           /* sample from tokens with at least this fraction of the best token's probability; 0: all */
  double repetition_penalty; /* divides the logits of tokens already seen; 0: 1 */
  const char* adapter;       /* the name of an adapter in the package; null: the model itself */
} accord_text_request_t;

#define ACCORD_TEXT_REQUEST_INIT \
  { sizeof(accord_text_request_t), NULL, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL }

/* The text of one request as it arrives. Used by one thread at a time. It keeps its model alive until it has returned
 * its last event. */
typedef struct accord_text_stream accord_text_stream_t;

/* For rank 0: submits a request. Fails with ACCORD_INVALID_ARGUMENT, which names the invalid option; ACCORD_NOT_FOUND
 * if the package has no tokenizer or chat format; ACCORD_RESOURCE_EXHAUSTED if too many requests are waiting; and,
 * once the model has ended, ACCORD_CLOSED after stop or the failure that ended it. */
ACCORD_API accord_status_t accord_language_model_generate(accord_language_model_t* model,
                                                          const accord_text_request_t* request,
                                                          accord_text_stream_t** stream);

typedef int32_t accord_finish_t;

enum {
  ACCORD_FINISH_NONE = 0, /* not finished */
  ACCORD_FINISH_STOP_TOKEN = 1,
  ACCORD_FINISH_STOP_SEQUENCE = 2, /* one of the stop texts */
  ACCORD_FINISH_LENGTH = 3,
  ACCORD_FINISH_CANCELLED = 4,
  ACCORD_FINISH_ERROR = 5 /* accord_text_stream_next returns the error */
};

/* More text of a sample, or its end, or both. */
typedef struct accord_text_event {
  size_t struct_size;
  const char* text;       /* whole characters, valid until the stream's next call; null: all samples have ended */
  int32_t sample;         /* index among the request's samples */
  accord_finish_t finish; /* of the sample */
} accord_text_event_t;

#define ACCORD_TEXT_EVENT_INIT \
  { sizeof(accord_text_event_t), NULL, 0, 0 }

/* Waits at most `timeout_ns` for more text; 0 does not wait. After ACCORD_TIMEOUT it may be called again; any other
 * error has ended a sample. */
ACCORD_API accord_status_t accord_text_stream_next(accord_text_stream_t* stream, int64_t timeout_ns,
                                                   accord_text_event_t* event);
/* Returns the number of tokens in the prompt and of those generated so far in all samples. Either result may be
 * null. */
ACCORD_API accord_status_t accord_text_stream_usage(accord_text_stream_t* stream, int64_t* prompt_tokens,
                                                    int64_t* completion_tokens);
/* Ends the request soon. Text that is available, or arrives until then, is returned first. */
ACCORD_API accord_status_t accord_text_stream_cancel(accord_text_stream_t* stream);
/* Cancels the request if it has not ended. */
ACCORD_API void accord_text_stream_free(accord_text_stream_t* stream);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_LANGUAGE_MODEL_H_ */
