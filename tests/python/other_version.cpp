// A library to be loaded before librondo, whose version it hides: what LD_LIBRARY_PATH may do to the
// Python module.
#include "rondo/rondo.h"

int32_t rondo_version(void) { return 98'07'06; }
