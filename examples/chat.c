/* Answers messages from standard input, one per line, with a language model on all ranks:
 *   accord run -n 2 build/release/examples/chat_c smollm2.accord
 * Each message is its own conversation. */
#include <stdio.h>
#include <string.h>

#include "accord/accord.h"

static const int64_t kPatience = 300000000000; /* 5 minutes, in nanoseconds */

static int fail(accord_status_t status) {
  fprintf(stderr, "%s: %s\n", accord_status_name(status), accord_last_error());
  return 1;
}

/* Asks, and prints the answer as it is generated. */
static accord_status_t answer(accord_language_model_t* model, const char* question) {
  accord_message_t message = {"user", question};
  accord_text_request_t request = ACCORD_TEXT_REQUEST_INIT;
  request.messages = &message;
  request.message_count = 1;
  request.max_new_tokens = 100;
  accord_text_stream_t* stream;
  accord_status_t status = accord_language_model_generate(model, &request, &stream);
  if (status != ACCORD_OK) return status;
  accord_text_event_t event = ACCORD_TEXT_EVENT_INIT;
  do {
    status = accord_text_stream_next(stream, kPatience, &event);
    if (status == ACCORD_OK) printf("%s", event.text != NULL ? event.text : "\n");
    fflush(stdout);
  } while (status == ACCORD_OK && event.text != NULL);
  accord_text_stream_free(stream);
  return status;
}

/* Reports a message that cannot be answered. An error that ends the model ends the program. */
static int converse(accord_language_model_t* model) {
  char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    accord_status_t status = answer(model, line);
    if (status == ACCORD_INVALID_ARGUMENT || status == ACCORD_RESOURCE_EXHAUSTED)
      fprintf(stderr, "not answered: %s\n", accord_last_error());
    else if (status != ACCORD_OK)
      return fail(status);
  }
  accord_status_t stopped = accord_language_model_stop(model);
  return stopped == ACCORD_OK ? 0 : fail(stopped);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: chat_c PACKAGE\n");
    return 1;
  }
  accord_communicator_t* comm;
  accord_status_t status = accord_communicator_from_environment(NULL, &comm);
  if (status != ACCORD_OK) return fail(status);
  accord_engine_group_t group = {"tp", comm};
  accord_engine_t* engine;
  status = accord_engine_load(argv[1], &group, 1, NULL, &engine);
  if (status != ACCORD_OK) return fail(status);
  accord_language_model_t* model;
  status = accord_language_model_create(engine, NULL, NULL, &model);
  if (status != ACCORD_OK) return fail(status);

  int32_t rank;
  int code = 0;
  accord_communicator_rank(comm, &rank);
  if (rank == 0) {
    code = converse(model);
  } else {
    status = accord_language_model_follow(model);
    if (status != ACCORD_OK) code = fail(status);
  }
  accord_language_model_free(model);
  accord_engine_free(engine);
  accord_communicator_free(comm);
  return code;
}
