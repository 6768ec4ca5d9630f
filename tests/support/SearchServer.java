// One OpenSearch node in a JVM, from the jars that tools/opensearch.sh brings; it says "ready" and runs until it is killed.
//   SearchServer HOME HTTP_PORT TRANSPORT_PORT

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Collection;
import java.util.List;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

public class SearchServer extends Node {
    SearchServer(Environment environment, Collection<Class<? extends Plugin>> plugins) {
        super(environment, plugins, true);
    }

    public static void main(String[] arguments) throws Exception {
        Path home = Paths.get(arguments[0]);
        Files.createDirectories(home.resolve("config"));
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("cluster.name", "sink-test")
            .put("node.name", "one")
            .put("discovery.type", "single-node")
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        Environment environment = new Environment(settings, home.resolve("config"));
        new SearchServer(environment, List.of(Netty4Plugin.class)).start();
        System.out.println("ready");
        System.out.flush();
        Thread.currentThread().join();
    }
}
