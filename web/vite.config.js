import { defineConfig } from "vite";

// Stable names and relative addresses: the same files serve a page at any path and go into one file of HTML.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/aureole/reports/explorer_page",
    emptyOutDir: true,
    sourcemap: false,
    modulePreload: false,
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "assets/explorer.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/explorer[extname]",
      },
    },
  },
});
