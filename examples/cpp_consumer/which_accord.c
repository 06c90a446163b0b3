/* Asks the library for its version and whether it has a feature. */
#include <accord/accord.h>
#include <stdio.h>

int main(int argc, char** argv) {
  const char* feature = argc > 1 ? argv[1] : "shm";
  const accord_status_t status = accord_check_feature(feature);
  printf("accord %s: %s is %s\n", accord_version(), feature,
         status == ACCORD_OK ? "available" : accord_status_name(status));
  if (status != ACCORD_OK) fprintf(stderr, "%s\n", accord_last_error());
  return status == ACCORD_OK ? 0 : 1;
}
