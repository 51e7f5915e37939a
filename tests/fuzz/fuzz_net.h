/* For targets that see the private parts of the network unit; see fuzz.h. */
#ifndef GN_FUZZ_NET_H
#define GN_FUZZ_NET_H

#include "fuzz_common.h"
#define GENIE_EXT
#include "../../genie.h"
#include "../../genie_net.c"

#endif
