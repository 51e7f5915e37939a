#define GENIE_IMPLEMENTATION
#include "genie.h"
