/* The smallest program: two tensors, one product, one read. Runs on this CPU, or wherever GENIE_DEVICES says.
 *
 *   ./examples/hello
 *   GENIE_DEVICES=@genie.url ./examples/hello
 */
#include "genie.h"
#include <stdio.h>

int main(void) {
    const float a[2 * 3] = { 1, 2, 3, 4, 5, 6 }, b[3 * 2] = { 1, 0, 0, 1, 1, 1 };
    float c[2 * 2];
    gn_device_info where = { 0 };
    gn_ctx *g = gn_open(NULL);
    gn_tensor x = gn_data(g, GN_F32, GN_SHAPE(2, 3), a);
    gn_tensor w = gn_weight(g, GN_F32, GN_SHAPE(3, 2), b, "w");
    gn_tensor y = gn_matmul(x, w); /* nothing is computed yet */
    if (gn_read(y, c, sizeof c) != GN_OK || gn_get_device(g, &where) != GN_OK) {
        fprintf(stderr, "hello: %s\n", gn_last_error(g)->text);
        gn_close(g);
        return 1;
    }
    printf("[%g %g]\n[%g %g]  computed by %s\n", (double)c[0], (double)c[1], (double)c[2], (double)c[3], where.name);
    gn_close(g);
    return 0;
}
